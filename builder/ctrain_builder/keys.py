"""The key of a layer: a SHA-256 over everything that can change it, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from ctrain_builder.definition import Definition
from ctrain_builder.files import SourceFile

LAYER_FORMAT = 1  # part of every key: raise it when the builder makes layers differently
_HEREDOC = re.compile(r"""(?<!<)<<-?\s*["']?(\w+)""")


def layer_key(parent: str, definition: Definition, files: Iterable[SourceFile], arch: str) -> str:
    """The key of the layer that `definition` (rendered) makes on the layer `parent` ("" for a base)."""
    parts = {
        "format": LAYER_FORMAT,
        "parent": parent,
        "arch": arch,
        "definition": significant(definition.text),
        "files": [[str(file.relative), file.executable, _digest(file)] for file in files],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def significant(text: str) -> list[str]:
    """The lines of a definition that can have an effect: all but blank ones and comments (`# ...`).

    Inside a here-document every line counts: it may be text, or a language where # means something else.
    """
    lines: list[str] = []
    end = ""
    for line in text.split("\n"):
        if line.lstrip().startswith("%"):
            end = ""  # sections end here-documents, as they do for Apptainer
        if not end and re.fullmatch(r"\s*(#(\s.*)?)?", line):
            continue
        lines.append(line)
        if end:
            end = "" if line.strip() == end else end
        else:
            opened = _HEREDOC.search(line)
            end = opened[1] if opened else ""
    return lines


def _digest(file: SourceFile) -> str:
    return hashlib.sha256(file.path.read_bytes()).hexdigest()

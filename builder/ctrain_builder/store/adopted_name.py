"""Proposes the name of an adopted image: from its file's name; what that lacks, from what is inside."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.errors import UsageError
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.store import NAME_RE, TAG_RE

STACK = "adopted"  # of an image whose file name tells none
FROM_LABEL = "org.label-schema.usage.singularity.deffile.from"  # which engines write: the image that one was made from
_FILE = re.compile(r"(?P<name>.+?)-v?(?P<tag>\d[A-Za-z0-9.]*)(?:-(?P<stack>.+))?")
_LEFT_OUT = re.compile(r"-(?:py3|r\d+)(?=-|\Z)")  # of a stack: what file names of stores have besides
_FRAMEWORKS = ("torch", "tensorflow")


@dataclass(frozen=True)
class AdoptedName:
    """The parts of the version that a file becomes, without the number, which the store gives."""

    name: str
    tag: str
    stack: str


def parse(text: str) -> AdoptedName:
    """NAME:TAG[-STACK], also with the number that the store gave or would give. Raises UsageError."""
    name, _, version = text.partition(":")
    tag, _, stack = version.partition("-")
    stack = re.sub(r"(?:-|\A)r\d+\Z", "", stack) or STACK
    if not NAME_RE.fullmatch(name) or not TAG_RE.fullmatch(tag) or not TAG_RE.fullmatch(stack):
        hint = (
            "Write it as in pytorch:22.03-hd=FILE: NAME:TAG-STACK of letters, digits, '.' and '-'; NAME in lower case"
        )
        raise UsageError(f"{text!r} is not the name of a version", hint)
    return AdoptedName(name, tag, stack)


def propose(file: Path, manifest: Manifest, modified: float) -> AdoptedName:
    """As in pytorch 22.03 hd for pytorch_22.03-hd-py3.sif. `manifest` has the facts of the image.

    A tag is the version in the file's name; else that of the image it was made from, of its framework, or its date.
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", file.stem).strip("-.")
    parts = _FILE.fullmatch(words)
    name = re.sub(r"[^a-z0-9]+", "-", (parts["name"] if parts else _LEFT_OUT.sub("", words)).lower()).strip("-")
    stack = _LEFT_OUT.sub("", f"-{parts['stack'] or ''}").strip("-.") if parts else ""
    tag = parts["tag"].rstrip(".") if parts else _tag(manifest) or time.strftime("%Y.%m.%d", time.gmtime(modified))
    return AdoptedName(name or "image", tag, stack or STACK)


def _tag(manifest: Manifest) -> str:
    """The version of what an image was made from, or of the framework in it; "" if neither has one."""
    stated = [manifest.labels.get(FROM_LABEL, "").rpartition(":")[2], *map(manifest.software.get, _FRAMEWORKS)]
    matches = (re.match(r"v?(\d[A-Za-z0-9.]*)", text) for text in stated if text)
    return next((match[1].rstrip(".") for match in matches if match), "")

"""The key of a layer: a SHA-256 over everything that can change it, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

# Sections that say what an image is and how it is used: no %post runs anything of them.
_ABOUT = ("%help", "%labels", "%runscript", "%startscript", "%test")
LOCK = (
    "images.lock"  # among the arguments of a layer whose packages are locked: no definition can have one of this name
)
COMPRESSION = "COMPRESSION"  # the argument that says how layers are packed, and nothing of what is in them
LAYER_FORMAT = 4  # part of every key: raise it when the builder makes layers differently


@dataclass(frozen=True)
class LayerInputs:
    """All that makes a layer what it is."""

    parent: str  # the key of the layer below; "" for a base
    base: str  # the digest of what a base starts from; "" if it has none
    arch: str
    arguments: dict[str, str]
    definition: tuple[str, ...]  # its significant lines
    files: dict[str, str]  # path -> as in "755 SHA-256"
    format: int = LAYER_FORMAT


def compute_key(inputs: LayerInputs) -> str:
    return hashlib.sha256(json.dumps(asdict(inputs), sort_keys=True).encode()).hexdigest()


def compute_recipe(inputs: LayerInputs, below: str) -> str:
    """A digest of all that runs to make a layer and those below it; `below` is the recipe of the next, "" for a base.

    Unlike a key, it stays the same whatever tests, labels and help say, and however the layer is packed.
    """
    parts = _sections(inputs.definition).items()
    sections = {name: text.rstrip() for name, text in parts if name not in _ABOUT}  # empty lines separate them
    arguments = {name: value for name, value in inputs.arguments.items() if name != COMPRESSION}
    made = [below, inputs.base, inputs.arch, arguments, sections, inputs.files]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def significant_lines(text: str) -> tuple[str, ...]:
    """The lines of a definition that can have an effect: its sections, verbatim, and its header without comments.

    Only a shell can tell a comment from a text that looks like one. %arguments counts by the values that are used.
    """
    lines: list[str] = []
    section = ""
    for line in text.rstrip("\n").split("\n"):
        if line.lstrip().startswith("%"):
            section = _section(line)
        if section == "%arguments" or (not section and re.fullmatch(r"\s*(#.*)?", line)):
            continue
        lines.append(line)
    return tuple(lines)


def differences(old: LayerInputs, new: LayerInputs) -> tuple[str, ...]:
    """What makes `new` another layer than `old`, in words."""
    return tuple(_differences(old, new))


def _differences(old: LayerInputs, new: LayerInputs) -> Iterator[str]:
    if old.parent != new.parent:
        yield "parent"
    if old.format != new.format:
        yield "ctrain builds layers differently"
    if old.base != new.base:
        yield f"base {short(old.base)} -> {short(new.base)}"
    if old.arch != new.arch:
        yield f"architecture {old.arch} -> {new.arch}"
    for name, before, after in _changed(old.arguments, new.arguments):
        yield "images.lock changed" if name == LOCK else f"argument {name} {_shown(before)} -> {_shown(after)}"
    if old.definition != new.definition:
        sections = sorted({name for name, *_ in _changed(_sections(old.definition), _sections(new.definition))})
        yield f"definition changed ({', '.join(sections) or 'order'})"
    for name, before, after in _changed(old.files, new.files):
        yield f"{name} {_file_change(before, after)}"


def short(digest: str) -> str:
    """As in sha256:71ab02f4."""
    return digest[: len("sha256:") + 8] or "none"


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(name, old value, new value) of all that is not the same in both; "" for one that is missing."""
    return (
        (name, old.get(name, ""), new.get(name, "")) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    )


def _shown(value: str) -> str:
    return value or "(none)"


def _file_change(old: str, new: str) -> str:
    if not old or not new:
        return "is gone" if old else "is new"
    return "changed" if old.split()[1] != new.split()[1] else f"has mode {old.split()[0]} -> {new.split()[0]}"


def _sections(lines: Sequence[str]) -> dict[str, str]:
    """Section -> its lines; the header's is called "header"."""
    sections: dict[str, str] = {}
    section = "header"
    for line in lines:
        section = _section(line) if line.lstrip().startswith("%") else section
        sections[section] = f"{sections.get(section, '')}{line}\n"
    return sections


def _section(line: str) -> str:
    return line.split()[0].lower()

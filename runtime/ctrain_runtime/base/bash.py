"""Values as bash words. Every value that gets into a script is quoted here, in one place."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

LINE_LENGTH = 118


def quote_argv(argv: Iterable[str]) -> str:
    """An argv as bash words."""
    return " ".join(map(shlex.quote, argv))


def array(name: str, argv: Iterable[str]) -> str:
    """A bash array, one readable line per word."""
    return f"{name}=(\n" + "".join(f"  {shlex.quote(word)}\n" for word in argv) + ")"


def exports(variables: Mapping[str, str]) -> str:
    """Lines that export variables, by name, as many to a line as it holds. The names must be names of variables: they
    are not quoted."""
    lines: list[str] = []
    for name, value in sorted(variables.items()):
        assignment = f"{name}={shlex.quote(value)}"
        if lines and len(lines[-1]) + len(assignment) < LINE_LENGTH:
            lines[-1] += f" {assignment}"
        else:
            lines.append(f"export {assignment}")
    return "\n".join(lines)


def fragment(path: Path) -> str:
    """A part of a script, which is a file of its own, without its head: the lines up to the first empty one, which are
    for readers and for shellcheck."""
    return path.read_text(encoding="utf-8").partition("\n\n")[2].rstrip("\n")

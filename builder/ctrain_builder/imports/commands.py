"""The commands of a Dockerfile as lines of %post.

Each runs as Docker runs it: in a shell of its own, which does not end at the first failing command, and whose directory
and variables are gone with it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Optional

from ctrain_builder.imports.instructions import Instruction
from ctrain_builder.imports.words import is_template, quote, quoted

SHELL = ("/bin/sh", "-c")  # Docker's default
_SEVERAL = re.compile(r";|(?<![>&])&(?![>&\d])")  # commands that may go on after a failure; && does not


def exec_form(text: str) -> Optional[list[str]]:
    """The words of a JSON array, as in CMD ["python", "train.py"]; None for any other text."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def run(instruction: Instruction, shell: Sequence[str]) -> list[str]:
    """The lines of a RUN. `shell` is what the last SHELL says."""
    words = exec_form(instruction.text)
    if words is not None:
        return [argv(words)]
    if instruction.heredocs:
        return _with_heredocs(instruction, shell)
    text = instruction.text
    lines = _layout(instruction.lines) or [text]
    if tuple(shell) != SHELL or is_template(text):
        return f"{argv(shell)} {quoted(chr(10).join(lines))}".split("\n")
    set_e = ["set +e"] if _SEVERAL.search(text) else []
    if len(lines) == 1 and not set_e and "#" not in text:
        return [f"( {text} )"]
    return ["(", *(f"    {line}" for line in [*set_e, *lines]), ")"]


def argv(words: Sequence[str]) -> str:
    return " ".join(map(quote, words))


def printf(lines: Sequence[str]) -> list[str]:
    """A command that prints lines, each a line of the script: one that is empty, or looks like a section, would not
    survive there otherwise."""
    return ["printf '%s\\n' \\", *(f"    {quoted(line)} \\" for line in lines[:-1]), f"    {quoted(lines[-1])}"]


def _layout(lines: Sequence[str]) -> list[str]:
    """The lines of a command as they were written; none where a shell would join them otherwise than Docker does, which
    does it first, also in quotes and comments."""
    for end in range(1, len(lines)):
        before, after = "".join(lines[:end]), lines[end]
        if not _is_complete(before) or not (before[-1:].isspace() or after[:1].isspace()):
            return []
    stripped = [line.strip() for line in lines if line.strip()]
    if any(line.startswith("%") for line in stripped):  # Apptainer takes it for a section
        return []
    first, *more = stripped
    return [part + " \\" * (number < len(more)) for number, part in enumerate([first, *(f"    {it}" for it in more)])]


def _is_complete(text: str) -> bool:
    """Whether a text ends outside quotes and comments."""
    try:
        return shlex.split(text) == shlex.split(text, comments=True)
    except ValueError:
        return False


def _with_heredocs(instruction: Instruction, shell: Sequence[str]) -> list[str]:
    """One that is nothing but a heredoc is a script; others are read by the shell."""
    first = instruction.heredocs[0]
    if re.sub("[\"']", "", instruction.text) != first.marker:
        script = [instruction.text]
        for heredoc in instruction.heredocs:
            script += [*heredoc.lines, heredoc.delimiter]
        return _script(script, argv(shell))
    if first.lines[:1] and first.lines[0].startswith("#!"):
        file = f"/tmp/dockerfile-{instruction.line}"  # noqa: S108  # in the image, while it is built
        printed = printf(first.lines)
        return [*printed[:-1], f"{printed[-1]} > {file}", f"{first.lines[0][2:].strip()} {file}", f"rm {file}"]
    return _script(first.lines or (":",), argv(shell))


def _script(lines: Sequence[str], interpreter: str) -> list[str]:
    printed = printf(lines)
    return [f'{interpreter} "$({printed[0]}', *printed[1:-1], f'{printed[-1]})"']

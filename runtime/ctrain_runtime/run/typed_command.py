"""Commands that can be seen to fail before they wait in a queue. The error shows the line to type."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path, PurePath

from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import JOB_FILE

INTERPRETERS = {".py": "python", ".sh": "bash"}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_OF_SHELLS = ("cd", "source", ".", "export", "ulimit", "umask", "set", "unset", "eval", "alias", "module")
_SYNTAX = re.compile(r"[;&|<>$`*?(){}\n]")  # what only a shell understands


def check(command: tuple[str, ...], directory: Path) -> None:
    """Raise UsageError if `command`, started in `directory`, does not begin with a program."""
    program = command[0]
    if _ASSIGNMENT.fullmatch(program):
        at = next((at for at, word in enumerate(command) if not _ASSIGNMENT.fullmatch(word)), len(command))
        options = " ".join(f"--env {shlex.quote(word)}" for word in command[:at])
        line = f"{options} -- {shlex.join(command[at:]) or 'PROGRAM'}"
        raise UsageError(f"{program!r} sets a variable: it is not a program", f"Use: ctrain run ... {line}")
    if program in _OF_SHELLS:
        text = shlex.quote(f"{shlex.join(command)} && PROGRAM")
        raise UsageError(f"{program!r} is a command of shells, not a program", f"Use: ctrain run ... -- bash -c {text}")
    path = directory / program
    if re.search(r"\s", program) and not os.path.lexists(path):
        text = shlex.join(command[1:])
        line = f"{program} {text}".strip()
        line = f"bash -c {shlex.quote(line)}" if _SYNTAX.search(program) else line
        raise UsageError(f"{program!r} is one word, not a program and its arguments", f"Use: ctrain run ... -- {line}")
    is_inside = directory in path.parents and ".." not in PurePath(program).parts  # else it may be the image's
    if is_inside:
        _check_file(command, path)


def _check_file(command: tuple[str, ...], path: Path) -> None:
    """Raise UsageError for a program below the run's directory that cannot be started; without a slash, it may also be
    one of the image."""
    program, interpreter = command[0], INTERPRETERS.get(path.suffix, "")
    is_file = os.path.isfile(path)  # noqa: PTH113  # Path.is_file raises for words that are too long
    if "/" not in program:
        if is_file and interpreter:
            raise UsageError(f"{program} is a file here, not a program of the image", _by(interpreter, command))
    elif path.is_dir():
        line = f"Use: ctrain run {shlex.quote(program)}" if (path / JOB_FILE).is_file() else "Name a program"
        raise UsageError(f"{program} is a directory", line)
    elif not is_file:
        raise UsageError(f"{program} not found in {path.parent}", "A program of the image needs its absolute path")
    elif not os.access(path, os.X_OK):
        by_itself = f"Use: chmod +x {shlex.quote(program)}"
        raise UsageError(f"{program} is not executable", _by(interpreter, command) if interpreter else by_itself)


def _by(interpreter: str, command: tuple[str, ...]) -> str:
    return f"Use: ctrain run ... -- {interpreter} {shlex.join(command)}"

"""Finds the program that starts ranks in a command: behind env, in the text of a shell, by each of its names.

Only what is typed is read. Files are not: what a script starts is unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "horovod.runner.launch": "horovodrun",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate-launch",
    "composer.cli.launcher": "composer",
}
# Their second word, where only that starts ranks.
SUBCOMMANDS = {"accelerate": "launch", "fabric": "run", "lightning": "run", "colossalai": "run"}
# Of schedulers: they would start a step in each rank.
SRUN = "srun"
SUBMITTERS = (SRUN, "jsrun", "lrun", "aprun", "ibrun", "ccc_mprun", "mpirun_rsh")
ENGINES = ("apptainer", "singularity", "docker", "podman", "shifter")
PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_OPTION = re.compile(r"-([bBdEiIOPqsSuvx]+|[WX].*)")  # man python; the value of -W and -X may be the next word
_SHELL = re.compile(r"(ba|da|z|k|)sh")
_SHELL_TEXT = re.compile(r"-[A-Za-z]*c")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
# Run what follows them; words of theirs begin with a dash or a digit, or name all of something.
_WRAPPERS = ("env", "exec", "command", "time", "nice", "ionice", "nohup", "timeout", "stdbuf", "setsid", "chrt")
_BINDERS = ("numactl", "taskset", "likwid-pin")
# The same, with a second word: they run what follows in an environment, or measure it.
_RUNNERS = {
    **dict.fromkeys(("uv", "poetry", "pdm", "hatch", "rye", "pixi", "pipenv", "conda", "mamba", "micromamba"), "run"),
    "nsys": "profile",
}
# Their options whose value is the next word, where that may look like a program.
_VALUED = {
    "env": ("-u", "--unset", "-C", "--chdir"),
    "exec": ("-a",),
    "time": ("-f", "--format", "-o", "--output"),
    "timeout": ("-s", "--signal"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("-n", "--name", "-p", "--prefix", "--cwd")),
    "uv": (
        "-p",
        "--python",
        "-w",
        "--with",
        "--with-editable",
        "--with-requirements",
        "--extra",
        "--group",
        "--project",
    ),
    "nsys": ("-o", "--output", "-t", "--trace", "-s", "--sample", "-w", "-c", "-f", "-x", "-y", "-d", "-e", "-b", "-k"),
}
_KEYWORDS = ("then", "do", "else", "!", "{")
_OF_WRAPPER = re.compile(r"-.*|[0-9].*|all|[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_OPERATOR = re.compile(r"[;&|()]+")


def name_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """The name of the program that `words` start, and its arguments: torchrun for `python -m torch.distributed.run`."""
    name, rest = PurePath(words[0]).name if words else "", list(words[1:])
    if PYTHON.fullmatch(name):
        return _name_of_module(name, rest)
    if name in SUBCOMMANDS:
        return (name, rest[1:]) if rest[:1] == [SUBCOMMANDS[name]] else ("", rest)
    return name, rest


def _name_of_module(python: str, rest: list[str]) -> tuple[str, list[str]]:
    """The program that Python runs as a module, or by the path of its script; else Python itself."""
    while rest and _PYTHON_OPTION.fullmatch(rest[0]):
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    if rest and rest[0].startswith("-m"):
        module, *arguments = [rest[0][2:], *rest[1:]] if rest[0] != "-m" else rest[1:] or [""]
        return (MODULES[module], arguments) if module in MODULES else (python, rest)
    if rest and PurePath(rest[0]).name in {*MODULES.values(), *SUBCOMMANDS}:
        return name_of(rest)
    return python, rest


def after_env(command: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables that `env A=1 B=2 PROGRAM ...` sets, and the program's words; without any, the command."""
    if not command or PurePath(command[0]).name != "env":
        return (), tuple(command)
    at = 1
    while at < len(command) and _ASSIGNMENT.fullmatch(command[at]):
        at += 1
    return tuple(command[1:at]), tuple(command[at:])


def simple_commands(command: Sequence[str]) -> Iterator[list[str]]:
    """The simple commands that a command is made of, if it is the text of a shell; else itself. Each without what only
    wraps it."""
    words = unwrapped(list(command))
    text = _shell_text(words)
    if text is None:
        yield words
        return
    for simple in _split(text):
        yield from simple_commands(simple)


def unwrapped(words: list[str]) -> list[str]:
    """Words without the variables and programs before the one that matters: X=1 numactl -N 0 PROGRAM ..."""
    while words:
        name = PurePath(words[0]).name
        if _ASSIGNMENT.fullmatch(words[0]) or name in _KEYWORDS:
            words = words[1:]
        elif name in (*_WRAPPERS, *_BINDERS) or words[1:2] == [_RUNNERS.get(name)]:
            words = words[2 if name in _RUNNERS else 1 :]
            if name == "command" and words[:1] in (["-v"], ["-V"]):  # only asks where it is
                return []
            while words and _OF_WRAPPER.fullmatch(words[0]):
                words = words[2 if words[0] in _VALUED.get(name, ()) else 1 :]
        else:
            break
    return words


def _shell_text(words: Sequence[str]) -> str | None:
    """The text that a shell runs, as in `bash -lc TEXT`; None for anything else."""
    if not words or not _SHELL.fullmatch(PurePath(words[0]).name):
        return None
    at = 1
    while at < len(words) and words[at].startswith(("-", "+")):
        if _SHELL_TEXT.fullmatch(words[at]):
            return words[at + 1] if at + 1 < len(words) else None
        at += 2 if words[at] in ("-o", "+o", "-O", "+O") else 1
    return None


def _split(text: str) -> list[list[str]]:
    """The simple commands of a shell's text; none if its quotes do not match."""
    lines = text.replace("\\\n", " ").replace("\n", ";")
    lexer = shlex.shlex(lines, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if _OPERATOR.fullmatch(word):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:
        return []
    return [command for command in commands if command]

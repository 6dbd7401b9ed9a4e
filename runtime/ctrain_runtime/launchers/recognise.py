"""Commands that start ranks themselves: they are translated to a launcher, or refused."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import PurePath
from typing import Optional

from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Count

SPAWNERS = ("mpirun", "mpiexec", "horovodrun", "deepspeed", "accelerate", "srun")
# Options of torchrun that take no value (torchrun --help); all others take one.
TORCHRUN_FLAGS = {"--standalone", "--no-python", "-m", "--module", "--run-path", "--use-env"}
TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
# Options that ctrain replaces by its own; also --rdzv-*.
REPLACED = TORCHRUN_FLAGS | {"--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port"}
PYTHON = re.compile(r"python[0-9.]*")
PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")  # without values (man python)
PROGRAM = re.compile(r"python[0-9.]*|.*\.(py|sh)")


@dataclass(frozen=True)
class Recognised:
    """A command without its launcher. `nodes` and `ranks_per_node` are from the launcher's options, None without;
    `ignored` names its options that have no effect here."""

    launcher: str
    command: tuple[str, ...]
    nodes: Optional[int] = None
    ranks_per_node: Optional[Count] = None
    ignored: tuple[str, ...] = ()


def recognise(command: tuple[str, ...]) -> Optional[Recognised]:
    """A command that begins with torchrun, translated; None for all others."""
    name, rest = PurePath(command[0]).name, list(command[1:])
    if name == "torchrun":
        return _torchrun(rest)
    if PYTHON.fullmatch(name):
        module = list(dropwhile(PYTHON_FLAGS.fullmatch, rest))
        if module[:1] == ["-m"] and module[1:2] and module[1] in TORCHRUN_MODULES:
            return _torchrun(module[2:])
    return None


def refuse_spawner(command: tuple[str, ...], ranks: int) -> None:
    """Refuse a command that would start its own ranks in each of several ranks. Raises UsageError with the line to
    type."""
    name = PurePath(command[0]).name
    if name not in SPAWNERS or ranks == 1:
        return
    start = next((at for at, word in enumerate(command[1:], 1) if PROGRAM.fullmatch(PurePath(word).name)), None)
    program = list(command[start:]) if start else ["PROGRAM"]
    if program[0].endswith(".py"):
        program = ["python", *program]
    raise UsageError(
        f"{name} would run in each of the {ranks} ranks, and start its own: ctrain starts the ranks itself",
        f"Remove {name}: ctrain run ... -- {shlex.join(program)}",
    )


def _torchrun(words: list[str]) -> Recognised:
    options, rest = _split(words)
    if not rest:
        raise UsageError("torchrun has no program", "As in: torchrun --nproc-per-node 4 train.py")
    if "-m" in options or "--module" in options:
        rest = ["python", "-m", *rest]
    elif "--no-python" not in options:
        rest = ["python", *rest]
    nodes = options.get("--nnodes", "")
    if ":" in nodes:
        raise UsageError(f"torchrun --nnodes {nodes}: the number of nodes must be fixed", "As in: --nnodes 2")
    ranks = options.get("--nproc-per-node", "")
    return Recognised(
        "torchrun",
        tuple(rest),
        int(nodes) if nodes.isdecimal() else None,
        int(ranks) if ranks.isdecimal() else "auto" if ranks else None,
        tuple(name for name in options if name not in REPLACED and not name.startswith("--rdzv-")),
    )


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """torchrun's own options, by their names with dashes, and the program with its arguments."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        name = name[:2] + name[2:].replace("_", "-")
        at += 1
        if not equals and name not in TORCHRUN_FLAGS:
            value = words[at] if at < len(words) else ""
            at += 1
        options[name] = value
    return options, words[at:]

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
from ctrain_runtime.launchers import spawner_options
from ctrain_runtime.launchers.spawner_options import SPAWNERS, Spawner
from ctrain_runtime.plan.environment import IDENTITY

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "horovod.runner.launch": "horovodrun",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate",
}
PYTHON = re.compile(r"python[0-9.]*")
PYTHON_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+")  # without values (man python)
PROGRAM = re.compile(r"python[0-9.]*|.*\.(py|sh)")
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
AUTO = ("auto", "gpu", "cpu", "xpu")  # ranks per node, of torchrun
NOT_PASSED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME")  # mpirun passes on the image's; here they are the host's
_VARIABLE = re.compile(r"[A-Z_]+(=.*)?")
# As the deepspeed command starts programs, which then have it among their arguments (launcher/launch.py).
_LOCAL_RANK = ("/bin/sh", "-c", 'exec "$@" --local_rank="$LOCAL_RANK"', "deepspeed")


@dataclass(frozen=True)
class Recognised:
    """A command without the program `by` that would start its ranks; "" if it is the program itself.

    `prefix` are words that start it in each rank; `nodes`, `ranks_per_node` and `ranks` (in all) are from the options
    of `by`, None without; `env` are variables in the place of options, as of --env; `notes` name options that have no
    effect here. `untranslated` is an option without an equivalent: then `command` is the whole one.
    """

    command: tuple[str, ...]
    by: str = ""
    launcher: str = ""
    prefix: tuple[str, ...] = ()
    nodes: Optional[int] = None
    ranks_per_node: Optional[Count] = None
    ranks: Optional[int] = None
    env: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    untranslated: str = ""


@dataclass(frozen=True)
class _Option:
    """`word` is its name as it was written, `value` "" for a flag, A=B for a pair."""

    word: str
    role: str
    value: str


def recognise(command: tuple[str, ...]) -> Recognised:
    """A command, translated if it begins with a spawner.

    Raises UsageError for a spawner without a program, and for invalid numbers.
    """
    name, words = PurePath(command[0]).name if command else "", list(command[1:])
    if PYTHON.fullmatch(name):
        module = list(dropwhile(PYTHON_FLAGS.fullmatch, words))
        name, words = MODULES.get(" ".join(module[1:2]), "") if module[:1] == ["-m"] else "", module[2:]
    elif name == "accelerate":
        name, words = name if words[:1] == ["launch"] else "", words[1:]
    return _translate(name, words, command) if name in SPAWNERS else Recognised(command)


def refuse_spawner(recognised: Recognised, ranks: int) -> None:
    """Refuse a command that would start its own ranks in each of several ranks. Raises UsageError with the line to
    type."""
    command, unknown = recognised.command, recognised.untranslated
    name = recognised.by if unknown else PurePath(command[0]).name
    if ranks == 1 or not (unknown or name in (*SPAWNERS, "srun")):
        return
    start = next((at for at, word in enumerate(command[1:], 1) if PROGRAM.fullmatch(PurePath(word).name)), None)
    program = list(command[start:]) if start else ["PROGRAM"]
    if program[0].endswith(".py"):
        program = ["python", *program]
    problem = f"ctrain has no equivalent of {unknown}" if unknown else "ctrain starts the ranks itself"
    otherwise = f"; or let {name} start those of one node: --nodes 1 --ranks-per-node 1" if unknown else ""
    raise UsageError(
        f"{name} would run in each of the {ranks} ranks, and start its own: {problem}",
        f"Remove {name}: ctrain run ... -- {shlex.join(program)}{otherwise}",
    )


def _translate(name: str, words: list[str], command: tuple[str, ...]) -> Recognised:
    spawner = SPAWNERS[name]
    options, program = _split(spawner, words)
    given = {option.role: option for option in options}
    untranslated = (
        given[""].word if "" in given else ":" if spawner_options.MCA in spawner.table and ":" in program else ""
    )
    if untranslated:
        return Recognised(command, name, spawner.launcher, untranslated=untranslated)
    if not program:
        raise UsageError(f"{name} has no program", f"As in: {name} train.py")
    if spawner_options.MODULE in given:
        program = ["python", "-m", *program]
    elif spawner.starts_python and spawner_options.PLAIN not in given:
        program = ["python", *program]
    nodes, per_node, ranks = (
        _count(name, given.get(role))
        for role in (spawner_options.NODES, spawner_options.PER_NODE, spawner_options.RANKS)
    )
    if spawner_options.HOSTS in given:
        nodes = len({host.partition(":")[0] for host in given[spawner_options.HOSTS].value.split(",")})
    elif ranks and per_node:
        nodes = nodes or max(1, ranks // per_node)
    return Recognised(
        tuple(program),
        name,
        next((launcher for launcher in spawner_options.LAUNCHERS if launcher in given), spawner.launcher),
        _LOCAL_RANK if spawner.passes_local_rank and spawner_options.NO_LOCAL_RANK not in given else (),
        nodes,
        per_node or ("auto" if spawner_options.PER_NODE in given else None),
        ranks,
        tuple(variable for option in options for variable in _variables(option)),
        tuple(
            f"{option.word} of {name} has no effect here"
            for option in options
            if option.role == spawner_options.IGNORED
        ),
    )


def _split(spawner: Spawner, words: list[str]) -> tuple[list[_Option], list[str]]:
    """The options of a spawner, and the program with its arguments. An option without an equivalent is the last one:
    whether it has a value is unknown."""
    options: list[_Option] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and (not options or options[-1].role):
        word, equals, value = words[at].partition("=")
        role, values = spawner.role(word.lstrip("-").replace("_", "-"))
        values = 0 if equals else values
        value = value or "=".join(words[at + 1 : at + 1 + values])
        if role == spawner_options.ENV and value in NOT_PASSED:
            word, role = f"{word} {value}", spawner_options.IGNORED
        elif role == spawner_options.ENV and value.partition("=")[0] in IDENTITY:
            role = spawner_options.REPLACED
        options.append(_Option(word, role, value))
        at += 1 + values
    return options, words[at:]


def _count(name: str, option: Optional[_Option]) -> Optional[int]:
    """The number that an option gives; None without the option. Raises UsageError if it is not one."""
    if option is None or (option.role == spawner_options.PER_NODE and option.value in AUTO):
        return None
    if not NUMBER.fullmatch(option.value):
        problem = f"{name} {option.word} must be a positive integer, not {option.value!r}"
        raise UsageError(problem, f"As in: {option.word} 2")
    return int(option.value)


def _variables(option: _Option) -> list[str]:
    """The variable in the place of an option, as of --env; an empty list if there is none."""
    if option.role == spawner_options.MCA:
        return [f"OMPI_MCA_{option.value}"]
    if option.role == spawner_options.ENV:
        return [option.value]
    if not _VARIABLE.fullmatch(option.role):
        return []
    value = option.value.upper() if option.role == "ACCELERATE_DYNAMO_BACKEND" else option.value
    return [option.role if "=" in option.role else f"{option.role}={value}"]

"""Commands that start ranks themselves: they are translated to a launcher, run once per node, or refused."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import PurePath
from typing import Optional

from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Count
from ctrain_runtime.launchers import lines_to_type, spawner_options
from ctrain_runtime.launchers.spawner_options import OTHERS, SPAWNERS, Spawner
from ctrain_runtime.launchers.starters import ENGINES, SUBMITTERS, after_env, name_of, simple_commands
from ctrain_runtime.plan.environment import IDENTITY

NODE = "node"
NUMBER = re.compile(r"[1-9][0-9]{0,8}")
ELASTIC = re.compile(r"[0-9]+:([0-9]+)")
AUTO = ("auto", "gpu", "cpu", "xpu")  # ranks per node, of torchrun
ABOUT = ("--help", "-h", "--version", "-V")  # with these, nothing is started
NOT_PASSED = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME")  # mpirun passes on the image's; here they are the host's
_NUMBERS = (spawner_options.NODES, spawner_options.PER_NODE, spawner_options.RANKS, spawner_options.HOSTS)
_VARIABLE = re.compile(r"[A-Z_]+(=.*)?")
IMAGE_OPTIONS = re.compile(  # of engines, with a value; -c, -C and -e have none
    r"-[BHWoS]|--(bind|env|home|workdir|overlay|pwd|env-file|app|scratch|network|mount|cwd|security)"
)


@dataclass(frozen=True)
class TranslatedCommand:
    """A command without the program `by` that would start its ranks; "" if it is the program itself.

    `prefix` are words that start it in each rank; `nodes`, `ranks_per_node` and `ranks` (in all) are from the options
    of `by`, None without; `env` are variables in the place of options, as of --env; `notes` name options that have no
    effect here. `hostfile` is an option that names hosts in a file. `untranslated` is an option without an equivalent:
    then `command` is the whole one. So it is with launcher node: then `by` starts the ranks of each node, in a world of
    their own if `apart` says so, in the words for a complaint; `instead` is the line to type.
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
    hostfile: str = ""
    apart: str = ""
    instead: str = ""
    numbers: str = field(default="", compare=False)  # the options that `nodes` and the others are from, as written


@dataclass(frozen=True)
class _Option:
    """`word` is its name as it was written, `value` "" for a flag, A=B for a pair."""

    word: str
    role: str
    value: str


def translate_command(command: tuple[str, ...]) -> TranslatedCommand:
    """A command, translated if it begins with a spawner; as it is, if it starts ranks in another way.

    Raises UsageError for a spawner without a program, or of another one; for invalid numbers, and for an engine.
    """
    assigned, words = after_env(command)
    name, rest = name_of(words)
    if name not in SPAWNERS:
        return keep(command)
    translated = _translate(name, rest, command)
    if translated.untranslated:
        return translated
    _refuse_inner(name, translated)
    return replace(translated, env=(*assigned, *translated.env), apart="")


def _refuse_inner(name: str, translated: TranslatedCommand) -> None:
    """Refuse a spawner whose program starts ranks, too; but one rank may, and torchrun that is told of the others."""
    inner = keep(translated.command)
    if inner.by and inner.nodes is None and translated.ranks != 1:
        problem = f"{name} would start {inner.by} in each rank, and that ranks of its own"
        raise UsageError(problem, f"Remove {name}: ctrain run ... -- {shlex.join(translated.command)}")


def keep(command: tuple[str, ...], *, requested: bool = False) -> TranslatedCommand:
    """A command as it is: with launcher node, if it starts ranks. `requested`: somebody chose that launcher, and knows
    what of the command's programs makes one world of all nodes."""
    for words in simple_commands(command):
        name, rest = name_of(words)
        _refuse_engine(words)
        if rest and rest[0] in ABOUT:
            continue
        if name in SPAWNERS:
            return _kept(command, words, name, rest, requested=requested)
        if name in OTHERS:
            apart = "" if requested else name
            line = OTHERS[name].format(name=name)
            return TranslatedCommand(command, name, NODE, apart=apart, instead=f"ctrain run ... {line}")
        if name in SUBMITTERS:
            return TranslatedCommand(command, name, apart=name, instead=lines_to_type.step_line(name, words))
    return TranslatedCommand(command)


def _kept(
    command: tuple[str, ...], words: list[str], name: str, rest: list[str], *, requested: bool
) -> TranslatedCommand:
    kept = TranslatedCommand(command, name, NODE, instead=f"ctrain run ... -- {shlex.join(words)}")
    with contextlib.suppress(UsageError):  # as $N for a number
        of = _translate(name, rest, tuple(words))
        kept = replace(kept, nodes=of.nodes, ranks_per_node=of.ranks_per_node, ranks=of.ranks, apart=of.apart)
        kept = replace(kept, numbers=of.numbers)
    if kept.apart:
        return replace(kept, apart=f"{name} {kept.apart}", instead=f"Remove {kept.apart}")
    return replace(kept, apart="" if requested or SPAWNERS[name].joins else name)


def check(translated: TranslatedCommand, launcher: str, nodes: int, ranks: int) -> None:
    """Refuse a command that would make more than one world. Raises UsageError with the line to type."""
    by, unknown = translated.by, translated.untranslated
    if ranks == 1 or not by:
        return
    if by in SUBMITTERS:
        problem = f"{by} would run in each of the {ranks} ranks, and start its own: ctrain starts the ranks itself"
        raise UsageError(problem, f"Remove {by}: {translated.instead}")
    if launcher == NODE and nodes > 1 and translated.apart:
        problem = f"{translated.apart} would make a world of its own on each of {nodes} nodes"
        raise UsageError(problem, translated.instead)
    if launcher == NODE and translated.nodes not in (None, nodes):
        hint = f"Pass --nodes {translated.nodes}, or leave it to ctrain: remove the number of nodes from the command"
        raise UsageError(f"{by} would make worlds of {translated.nodes} nodes on {nodes} nodes", hint)
    if unknown and (launcher != NODE or nodes > 1):
        problem = f"{by} would run in each of the {ranks} ranks, and start its own: ctrain has no equivalent of"
        if translated.instead:
            raise UsageError(f"{problem} {unknown}", translated.instead)
        program = lines_to_type.program_line(translated.command)
        hint = f"Remove {by}: ctrain run ... -- {program}; or let {by} start those of one node: --nodes 1"
        raise UsageError(f"{problem} {unknown}", hint)
    if launcher != NODE and translated.launcher == NODE:
        problem = f"{by} would run in each of the {ranks} ranks, and start its own"
        line = f"ctrain run ... --launcher node -- {shlex.join(translated.command)}"
        raise UsageError(problem, f"Let it start the ranks of each node: {line}")


def _refuse_engine(words: Sequence[str]) -> None:
    """Refuse a container in the container. Raises UsageError with the line to type."""
    name = PurePath(words[0]).name if words else ""
    if name not in ENGINES or list(words[1:2]) not in (["exec"], ["run"], ["shell"]):
        return
    rest = list(words[2:])
    while rest and rest[0].startswith("-"):
        rest = rest[2 if IMAGE_OPTIONS.fullmatch(rest[0]) else 1 :]
    image, program = (rest[0], rest[1:]) if rest else ("IMAGE", [])
    line = f"ctrain run ... --image {shlex.quote(image)} -- {shlex.join(program) or 'PROGRAM'}"
    raise UsageError(f"{name} {words[1]} is not for commands of a run: ctrain starts the container itself", line)


def _translate(name: str, words: list[str], command: tuple[str, ...]) -> TranslatedCommand:
    spawner = SPAWNERS[name]
    options, program = _split(spawner, words)
    given = {option.role: option for option in options}
    untranslated = (
        given[""].word if "" in given else ":" if spawner_options.MCA in spawner.table and ":" in program else ""
    )
    if untranslated:
        note = f"launcher node: ctrain has no equivalent of {untranslated}, so {name} itself starts the ranks"
        instead = _instead(name, spawner, words, command, untranslated)
        return TranslatedCommand(command, name, NODE, untranslated=untranslated, notes=(note,), instead=instead)
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
    return TranslatedCommand(
        tuple(program),
        name,
        next((launcher for launcher in spawner_options.LAUNCHERS if launcher in given), spawner.launcher),
        _local_rank(spawner, program) if spawner_options.NO_LOCAL_RANK not in given else (),
        nodes,
        per_node or ("auto" if spawner_options.PER_NODE in given else None),
        ranks,
        tuple(variable for option in options for variable in _variables(option)),
        tuple(
            f"{option.word} of {name} has no effect here"
            for option in options
            if option.role == spawner_options.IGNORED
        ),
        hostfile=f"{name} {given[spawner_options.HOSTFILE].word}" if spawner_options.HOSTFILE in given else "",
        apart=given[spawner_options.ALONE].word if spawner_options.ALONE in given else "",
        numbers=" ".join([name, *(f"{option.word} {option.value}" for option in options if option.role in _NUMBERS)]),
    )


def _instead(name: str, spawner: Spawner, words: list[str], command: tuple[str, ...], untranslated: str) -> str:
    """The hint for an option without an equivalent, or for several programs; "" without a line that does the same."""
    of_each_node = f"Let {name} start the ranks of each node:"
    if spawner.joins:
        return f"{of_each_node} ctrain run ... --launcher node -- {shlex.join(command)}"
    if spawner.on_each_node:
        start = command[: len(command) - len(words)]
        return f"{of_each_node} {lines_to_type.on_each_node(start, spawner.on_each_node, words)}"
    if untranslated != ":":
        return ""
    ranks, programs = [], []
    for is_colon, group in groupby(words, ":".__eq__):
        if not is_colon:
            options, program = _split(spawner, list(group))
            ranks.append(next((option.value for option in options if option.role == spawner_options.RANKS), ""))
            programs.append(program)
    return f"One command starts all programs of a run: {lines_to_type.by_rank(ranks, programs)}"


def _local_rank(spawner: Spawner, program: list[str]) -> tuple[str, ...]:
    """The words that add the local rank to the arguments of a program."""
    if spawner.local_rank[-1:] != ("torch.distributed.launch",):
        return spawner.local_rank
    before = 1 if program[0] != "python" else 3 if program[1] == "-m" else 2
    return (*spawner.local_rank, str(before))


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
    if option.role == spawner_options.NODES and (elastic := ELASTIC.fullmatch(option.value)):
        problem = f"{name} {option.word} {option.value} is elastic: the number of a run's nodes does not change"
        raise UsageError(problem, f"Pass --nodes {elastic[1]}, and remove {option.word} from the command")
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

"""What a job asks of qsub: the options of the plan, and those of --scheduler-option and `submit` of a site file.

Of what is given twice qsub takes the first and ignores the rest without a word (its source: qsub.c, set_resources). So
the user's place replaces ctrain's, of several options the last one comes first, and what contradicts the plan is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import dependency
from ctrain_runtime.schedulers.submission import NEEDS_LOG, PLANNED, STARTS_AGAIN

FLAGS = "fhGIVXz"  # options of qsub without a value (its source: qsub_sup.c, GETOPT_ARGS)

REFUSED = {
    "e": NEEDS_LOG,
    "I": ("an interactive job runs no script", "Remove it"),
    "J": ("all subjobs of an array would write to one run directory", "Submit one run per element"),
    "j": NEEDS_LOG,
    "N": (PLANNED, "Use --name NAME"),
    "o": NEEDS_LOG,
    "r": STARTS_AGAIN,
    "V": ("it would pass all variables of this shell to the nodes", "Remove it; --env NAME passes one"),
    "z": ("ctrain needs the id that qsub prints", "Remove it"),
}
REFUSED_RESOURCES = {
    **dict.fromkeys(("select", "nodes", "nodect"), "Use --nodes, --gpus-per-node and --constraint"),
    **dict.fromkeys(("ncpus", "mpiprocs", "ompthreads"), "Use --ranks-per-node"),
    "ngpus": "Use --gpus-per-node",
    "mem": "Use --mem",
    "walltime": "Use --time",
}
REFUSED_ATTRIBUTES = {"block": ("qsub would wait for the end of the job", "Remove it; ctrain run waits")}

ARRANGEMENTS = ("free", "pack", "scatter", "vscatter")  # man pbs_resources, -l place
DEFAULT_PLACE = "scatter"  # else PBS may put several chunks on one host

_SETTING = re.compile(r"--([a-z]+)=(.*)", re.DOTALL)
_SETTINGS = ("account", "constraint", "mem", "reservation")
ITEM = re.compile(r",(?=\s*\w+=)")  # between NAME=VALUE,NAME=VALUE


def job_options(plan: LaunchPlan) -> list[list[str]]:
    """The words of each option. Raises UsageError for what PBS lacks, and for what contradicts the plan."""
    settings, place, passed = dict(plan.placement.settings), DEFAULT_PLACE, []
    for option in plan.placement.options:
        setting = _SETTING.fullmatch(option)
        if setting:
            settings[setting[1]] = setting[2]
        for letter, value in () if setting else parse_letters(option):
            _refuse(option, letter, value)
            if letter == "W" and plan.placement.after and any(_name(item) == "depend" for item in ITEM.split(value)):
                raise UsageError(f"qsub option {option!r} is not supported: --after sets it", "Leave out one of them")
            if letter == "q" and not option.startswith("-q"):
                problem = f"qsub option {option!r} combines letters: ctrain reads -q, too"
                raise UsageError(problem, "Write -q QUEUE apart")
            if letter == "A":
                settings["account"] = value.strip()
            elif letter == "l":
                items = ITEM.split(value.strip())
                place = next((_place(plan, option, item) for item in items if _name(item) == "place"), place)
                passed += [["-l", item.strip()] for item in items if _name(item) != "place"]
            else:
                passed.append(_words(letter, value))
    for name in settings:
        if name not in _SETTINGS:
            hint = "Pass PBS's own option, as in: --scheduler-option='-l NAME=VALUE'"
            raise UsageError(f"PBS has no --{name} (supported: {', '.join(_SETTINGS)})", hint)
    umask = "" if _sets_umask(plan) else plan.program.umask
    return [*_own(plan, settings, place, umask), *reversed(passed)]


def _sets_umask(plan: LaunchPlan) -> bool:
    """Whether the user's options do."""
    letters = (pair for option in plan.placement.options for pair in parse_letters(option))
    return any(_name(item) == "umask" for letter, value in letters if letter == "W" for item in ITEM.split(value))


def _own(plan: LaunchPlan, settings: dict[str, str], place: str, umask: str) -> Iterator[list[str]]:
    yield ["-N", plan.run]
    yield ["-q", settings.get("reservation", plan.placement.partition)]  # a reservation is a queue
    yield ["-l", f"select={_chunks(plan, settings)}"]
    yield ["-l", f"place={place}"]
    if plan.size.time_limit is not None:
        yield ["-l", f"walltime={plan.size.time_limit // 60:02d}:{plan.size.time_limit % 60:02d}:00"]
    yield ["-j", "oe"]
    yield ["-o", run_files.SCHEDULER_LOG]  # in the directory of qsub, which lets no letters but ASCII through here
    if umask:  # else 077 (man pbs_job_attributes)
        yield ["-W", f"umask={umask}"]
    # a second start would mix its records with those of the first, but for one that goes on from there
    yield ["-r", "y" if plan.program.is_requeued else "n"]
    if "account" in settings:
        yield ["-A", settings["account"]]
    if plan.placement.after:
        yield ["-W", f"depend={dependency(plan)}"]


def _chunks(plan: LaunchPlan, settings: dict[str, str]) -> str:
    size, may_ask = plan.size, "gpus" not in plan.placement.not_requested
    memory = settings.get("mem") or (f"{size.memory}mb" if size.memory is not None else "")
    own = ":".join(plan.placement.constraint.features) if plan.placement.constraint else ""  # the user's among them
    features = own or settings.get("constraint", "")
    parts = [
        f"{size.nodes}:ncpus={size.cpus_per_rank * size.ranks_per_node}:mpiprocs={plan.tasks_per_node}",
        *([f"ngpus={size.gpus_per_node}"] if size.gpus_per_node and may_ask else []),
        *([f"mem={memory}"] if memory else []),
        *([features] if features else []),
    ]
    return ":".join(parts)


def parse_letters(option: str) -> Iterator[tuple[str, str]]:
    """The letters of an option as getopt reads them, each with its value: `-hry` is -h and `-r y`."""
    if not re.match(r"-[A-Za-z]", option):
        yield "", option
        return
    rest = option[1:]
    while rest[:1] in FLAGS and rest:
        yield rest[0], ""
        rest = rest[1:]
    if rest:
        yield rest[0], rest[1:]


def _words(letter: str, value: str) -> list[str]:
    if not letter:
        return [value]
    if not value.strip():
        return [f"-{letter}"]
    return [f"-{letter}", value.lstrip()] if value[:1].isspace() else [f"-{letter}{value}"]


def _refuse(option: str, letter: str, value: str) -> None:
    """Raise UsageError if this option, or one of its resources or attributes, contradicts the plan."""
    refused = REFUSED.get(letter)
    for name in map(_name, ITEM.split(value)):
        if letter == "l" and name in REFUSED_RESOURCES:
            refused = PLANNED, REFUSED_RESOURCES[name]
        elif letter == "W" and name in REFUSED_ATTRIBUTES:
            refused = REFUSED_ATTRIBUTES[name]
    if refused:
        raise UsageError(f"qsub option {option!r} is not supported: {refused[0]}", refused[1])


def _name(item: str) -> str:
    return item.partition("=")[0].strip().lower()  # resources have no case


def _place(plan: LaunchPlan, option: str, item: str) -> str:
    """The user's place; ctrain's arrangement, if that says only how hosts are shared."""
    place = item.partition("=")[2].strip()
    arrangement = place.partition(":")[0].lower()
    if arrangement == "pack" and plan.size.nodes > 1:
        problem = f"qsub option {option!r} is not supported: it would put {plan.size.nodes} nodes on one host"
        raise UsageError(problem, f"Use place={DEFAULT_PLACE}")
    return place if arrangement in ARRANGEMENTS else f"{DEFAULT_PLACE}:{place}"

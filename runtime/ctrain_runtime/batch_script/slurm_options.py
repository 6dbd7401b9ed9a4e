"""Options of sbatch and srun, as a script has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ctrain_runtime import schedulers
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.batch_script.model import Remark, Request
from ctrain_runtime.schedulers.slurm.options import FLAGS, REFUSED, SHORT
from ctrain_runtime.schedulers.submission import PLANNED

SIZES = ("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "time", "chdir")
# Options of `ctrain run` with the same name and value.
SAME = ("partition", "account", "qos", "constraint", "mem", "nodelist", "exclude", "reservation", "comment")
# What ctrain decides itself, and why.
DECIDED = {
    **dict.fromkeys(("output", "error", "open-mode", "input"), "the output is in the run directory"),
    **dict.fromkeys(
        ("cpus-per-task", "cpus-per-gpu", "cpu-bind", "cpu_bind"), "ranks share the cores of the job's GPUs"
    ),
    **dict.fromkeys(("mem-bind", "gpu-bind", "distribution", "hint", "threads-per-core"), "ctrain binds the ranks"),
    **dict.fromkeys(("label", "unbuffered", "kill-on-bad-exit", "verbose", "quiet"), "ctrain starts the ranks"),
    "mpi": "the launcher decides",
    "job-name": "runs are named after their job; --name NAME gives another",
    "parsable": "ctrain reads the job's id itself",
}
_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir"}
_NO_VALUE = (  # long options; a value of others may be the next word (man sbatch, man srun)
    *(
        "exclusive",
        "hold",
        "requeue",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "overlap",
        "spread-job",
        "contiguous",
    ),
    *("wait", "parsable", "verbose", "quiet", "label", "unbuffered", "kill-on-bad-exit", "exact", "use-min-nodes"),
    *("get-user-env", "reboot", "no-kill", "test-only", "pty", "preserve-env", "multi-prog", "disable-status"),
)
SRUN_FLAGS = "EHklmOQsuvXZK"  # short options of srun without a value; those of sbatch: FLAGS
_LETTERS = {
    **SHORT,
    **{option[1:]: name for option, name in schedulers.get("slurm").short_options.items()},
    "d": "dependency",
    "H": "hold",
    "k": "no-kill",
    "K": "kill-on-bad-exit",
    "l": "label",
    "L": "licenses",
    "m": "distribution",
    "O": "overcommit",
    "Q": "quiet",
    "s": "oversubscribe",
    "u": "unbuffered",
    "v": "verbose",
}
_GPUS = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::([0-9]+))?(?:\(.*\))?")
_TYPED = re.compile(r"([A-Za-z][\w.-]*):([0-9]+)")


def read(words: Sequence[str], flags: str = FLAGS) -> tuple[list[tuple[str, str]], list[str]]:
    """Each option by its long name, with its value, as getopt_long reads them; and the words from the first on that is
    none."""
    options: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in _NO_VALUE and rest:
                value = rest.pop(0)
            options.append((_ALIASES.get(name, name), value))
            continue
        letters = word[1:]
        while letters and letters[0] in flags:
            options.append((_LETTERS.get(letters[0], letters[0]), ""))
            letters = letters[1:]
        if letters:
            value = letters[1:] or (rest.pop(0) if rest else "")
            options.append((_LETTERS.get(letters[0], letters[0]), value.removeprefix("=")))
    return options, rest


def add(request: Request, line: int, text: str, words: Sequence[str]) -> None:
    """Add the options of one line #SBATCH to the request."""
    options, rest = read(words)
    if rest:
        request.remarks.append(Remark(line, text, f"{rest[0]} is not an option"))
    for name, value in options:
        if name == "gres":
            _add_gres(request, value)
        elif name in SIZES:
            request.sizes[name] = _without_type(request, name, value)
        elif name in SAME:
            request.options += [f"--{name}", value]
        elif name in DECIDED or (name == "export" and value in ("ALL", "NONE", "NIL")):
            reason = DECIDED.get(name, "what passes to the program is a list")
            request.remarks.append(Remark(line, text, reason, lost=False))
        elif name in REFUSED or name == "export":
            reason, use = REFUSED.get(name, ("pass variables with --env NAME", ""))
            request.remarks.append(Remark(line, text, use if reason == PLANNED else f"{reason}. {use}".rstrip(". ")))
        elif re.fullmatch(r"[a-z][a-z-]+", name):
            request.options.append(f"--scheduler-option=--{name}{'=' if value else ''}{value}")
        else:
            request.remarks.append(Remark(line, text, f"unknown option {quote_argv([name])}"))


def _add_gres(request: Request, value: str) -> None:
    """GPUs per node; other resources, and a type of GPUs, are options of the scheduler."""
    others = []
    for item in value.split(","):
        gpus = _GPUS.fullmatch(item)
        if gpus:
            request.sizes["gpus-per-node"] = gpus[2] or "1"
        if gpus is None or gpus[1]:
            others.append(item)
    if others:
        request.options.append(f"--scheduler-option=--gres={','.join(others)}")


def _without_type(request: Request, name: str, value: str) -> str:
    """The number in TYPE:NUMBER; the type of the GPUs is an option of the scheduler."""
    typed = _TYPED.fullmatch(value) if name.startswith("gpus") else None
    if typed and name == "gpus-per-node":
        request.options.append(f"--scheduler-option=--gres=gpu:{value}")
    return typed[2] if typed else value

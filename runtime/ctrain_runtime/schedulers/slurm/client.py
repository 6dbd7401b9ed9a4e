"""Runs Slurm's commands and parses the notations of their output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import command
from ctrain_runtime.base.command import CommandResult
from ctrain_runtime.errors import CtrainError, SchedulerError

# Variables are options for Slurm's commands (man sbatch, squeue, scancel: ENVIRONMENT VARIABLES): SBATCH_PARTITION
# overrides a script, SQUEUE_FORMAT changes answers, SCANCEL_INTERACTIVE asks questions, and those of an outer job
# (SLURM_CPUS_PER_TASK, SLURM_UMASK ...) would leak into a new one. The commands get only those needed to reach Slurm.
OPTION_PREFIXES = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SACCT_", "SINFO_")
_STEP_OPTIONS = (*OPTION_PREFIXES, "SLURMD_DEBUG")
KEPT = frozenset(
    {
        "SLURM_CONF",  # path of the configuration file
        "SLURM_CONF_SERVER",  # host of the configuration, on sites without the file
        "SLURM_CLUSTERS",  # cluster of a federation
        "SLURM_JWT",  # token of the user, on sites without munge
    }
)
# srun also reads the variables of the allocation around it as options (man srun, INPUT ENVIRONMENT VARIABLES, 22.05 to
# 26.05): SLURM_GPUS_PER_TASK of `salloc --gpus-per-task=1` would give each rank one GPU, SLURM_HINT fewer cores. A step
# has options of its own; it needs to know which job it belongs to, and how to reach Slurm. What only describes the job
# stays, for programs that read it.
KEPT_IN_ALLOCATION = KEPT | {
    *("SLURM_JOBID", "SLURM_NODELIST", "SLURM_NODE_ALIASES", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT"),
    "SLURM_WORKING_CLUSTER",  # where the controller of the job is
    "SLURM_STEPMGR",  # the node that manages the job's steps, instead of the controller
    "SLURM_NETWORK",  # the job's own, without which its steps get none (Slingshot)
}
KEPT_PREFIXES = (
    *("SLURM_JOB_", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_TOPOLOGY_", "SLURM_HET_"),
    *("SLURM_PMIX_", "SLURM_SPANK_", "SLURM_SACK_"),  # settings of plugins
)

_PREFIXES = re.compile(
    r"^(?:s(?:batch|cancel|control|queue|run): )?(?:error: |fatal: )?"
    r"(?:Batch job submission failed: |allocation failure: )?"
)
_FREE_TEXT = re.compile(r"\s(?:Reason|Comment|Extra)=")
_DIGITS = re.compile(r"[0-9]{1,18}")
_PARENTHESES = re.compile(r"\([^)]*\)")
_TRES_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,9})")


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: Optional[Path] = None,
    stdin: str = "",
    new_session: bool = False,
    pass_fds: tuple[int, ...] = (),
) -> CommandResult:
    """Run a command of Slurm, whatever its exit code. Raises CtrainError if it cannot start or times out."""
    return command.run(
        argv,
        env=client_environment(),
        cwd=cwd,
        timeout=timeout,
        check=False,
        stdin=stdin,
        new_session=new_session,
        pass_fds=pass_fds,
    )


def query(argv: Sequence[str], *, timeout: float, problem: str, hint: str, new_session: bool = False) -> str:
    """The output of a command of Slurm. Raises SchedulerError, "PROBLEM: CAUSE", if it fails or times out."""
    try:
        result = run(argv, timeout=timeout, new_session=new_session)
    except CtrainError as error:
        raise SchedulerError(f"{problem}: {error.message}", hint) from error
    if result.code != 0:
        raise SchedulerError(f"{problem}: {error_text(result)}", hint)
    return result.stdout


def client_environment() -> dict[str, str]:
    """The caller's environment without variables that are options of Slurm's commands, and without TMPDIR: jobs get
    theirs from the node, where the caller's may be missing, or shared with all nodes."""
    dropped = (*OPTION_PREFIXES, "TMPDIR")
    return {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(dropped)}


def allocation_environment() -> dict[str, str]:
    """The caller's environment for steps of the allocation around it, without what srun would read as options."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_IN_ALLOCATION or name.startswith(KEPT_PREFIXES) or not name.startswith(_STEP_OPTIONS)
    }


def require_commands(*programs: str) -> None:
    """Raise SchedulerError if one of `programs` is not on PATH."""
    for program in programs:
        if not command.which(program):
            raise SchedulerError(
                f"Slurm command {program} not found on PATH",
                "Load Slurm's module, or run here with --site local",
            )


def error_text(result: CommandResult) -> str:
    """The errors that a command of Slurm printed, in one line and without its prefixes.

    All lines: site policies (job_submit, cli_filter) explain a refusal before the last one.
    """
    lines = [
        _PREFIXES.sub("", line) for line in result.stderr.splitlines() if line.strip() and not line.startswith("Try ")
    ]
    return "; ".join(dict.fromkeys(map(str.strip, lines))) or result.last_error_line()


def records(text: str, key: str) -> Iterator[str]:
    """The records of `scontrol show`, each of which begins with `key`=; with --oneliner or without."""
    return (part for part in re.split(rf"(?m)^(?={key}=)", text) if part.startswith(f"{key}="))


def read_fields(text: str, pattern: re.Pattern[str]) -> dict[str, str]:
    """The NAME=VALUE pairs of a record whose two groups `pattern` matches.

    The first of each name counts. Free text (reasons, comments) and all that follows it is ignored.
    """
    text = f" {text}"
    free = _FREE_TEXT.search(text)
    return dict(reversed(pattern.findall(text, 0, free.start() if free else len(text))))


def fields_pattern(*names: str) -> re.Pattern[str]:
    """A pattern for read_fields that matches the fields `names`, each after white space: it is applied to each node."""
    return re.compile(rf"\s({'|'.join(names)})=(\S*)")


def read_count(text: str) -> Optional[int]:
    """The number at the start of `text`; None without one: UNLIMITED, N/A, (null)."""
    digits = _DIGITS.match(text)
    return int(digits.group()) if digits else None


def read_megabytes(text: str) -> int:
    """Memory as Slurm writes it in TRES, in MB: 8000M, 1.50G, 2T; 0 for any other text."""
    amount = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)", text)
    if not amount:
        return 0
    units = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
    return int(float(amount[1]) * units[amount[2]])


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names in a list of hosts, as in gpu[01-03,7],cpu1 (man slurm.conf, NodeName); () for the path of a file."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", "" if "/" in text else text):
        head, _, tail = part.partition("[")
        inside, _, rest = tail.partition("]")
        for item in inside.split(","):
            ends = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", item)
            numbers = range(int(ends[1]), int(ends[2]) + 1) if ends else ()
            items = [str(number).zfill(len(ends[1])) for number in numbers] if ends else [item]
            names += [head + number + end for number in items for end in expand_hosts(rest) or ("",)]
    return tuple(names)


def compress_hosts(names: Iterable[str]) -> str:
    """Names of hosts in Slurm's notation, as expand_hosts reads it: gpu[01-03,07],login."""
    numbers: dict[tuple[str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        head, digits = re.fullmatch(r"(.*?)([0-9]{0,6})", name, re.DOTALL).groups()  # type: ignore[union-attr]  # it fits all
        numbers.setdefault((head, len(digits)), []).append(int(digits or 0))
    return ",".join(_hosts(head, width, sorted(of_head)) for (head, width), of_head in numbers.items())


def _hosts(head: str, width: int, numbers: list[int]) -> str:
    """The names HEAD01, HEAD02 ... in one word; HEAD alone for a width of 0."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    texts = ["-".join(f"{end:0{width}}" for end in ends) for ends in ranges]
    return head if not width else head + (texts[0] if len(numbers) == 1 else f"[{','.join(texts)}]")


def parse_gres(text: str) -> tuple[int, str]:
    """(GPUs, their type), from gpu:a100:8(S:0-1), gpu:4, gpu:v100:2,nvme:1, gres/gpu:2, gres:gpu:a100:2 and (null).

    The type is "" where a job may get one or the other: gpu:a100:3,gpu:a100_1g.5gb:7.
    """
    total, types = 0, set()
    for part in _PARENTHESES.sub("", text).split(","):
        name, *rest = re.sub(r"^gres[:/]", "", part).split(":")
        if name != "gpu":
            continue
        count = rest[-1] if rest else "1"  # --gres=gpu is one
        if re.fullmatch(r"[0-9]{1,9}", count):
            total += int(count)
            types.add(rest[0] if len(rest) > 1 else "")
    return total, types.pop() if len(types) == 1 else ""


def parse_tres(text: str) -> int:
    """GPUs in a list of TRES, as in cpu=2,mem=16000M,node=2,billing=2,gres/gpu=16,gres/gpu:a100=16.

    Which of the last two are shown, is the site's choice (AccountingStorageTRES in man slurm.conf).
    """
    counts = [(gpu_type, int(number)) for gpu_type, number in _TRES_GPUS.findall(text)]
    totals = [number for gpu_type, number in counts if not gpu_type]
    return totals[0] if totals else sum(number for _, number in counts)

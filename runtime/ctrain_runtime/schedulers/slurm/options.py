"""Options of sbatch that are not ctrain's own: those of --scheduler-option, and `submit` of a site file.

Of what is given twice Slurm takes the last. So what contradicts the plan is refused, however it is spelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.slurm.client import compress_hosts
from ctrain_runtime.schedulers.submission import NEEDS_LOG, PLANNED, STARTS_AGAIN

FLAGS = "HhOQsvVW"  # short options of sbatch without a value (man sbatch)

REFUSED = {
    "array": ("all tasks of an array would write to one run directory", "Submit one run per element"),
    "chdir": ("the job runs in the run directory", "Use --runs DIR for where run directories are"),
    "clusters": ("the plan is made for this cluster", "Run ctrain on a login node of the other one"),
    "error": NEEDS_LOG,
    "job-name": (PLANNED, "Use --name NAME"),
    "nodes": (PLANNED, "Use --nodes"),
    "output": NEEDS_LOG,
    "requeue": STARTS_AGAIN,
    "test-only": ("sbatch would queue nothing", "Use --dry-run"),
    "time": (PLANNED, "Use --time"),
    "wait": ("sbatch would wait for the end of the job", "Remove it; ctrain run waits"),
    "wrap": ("the job's script is job.sh", "Pass the command after --"),
    **dict.fromkeys(
        ("ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket"),
        (PLANNED, "Use --nodes and --ranks-per-node"),
    ),
    **dict.fromkeys(("cpus-per-task", "cpus-per-gpu"), (PLANNED, "Use --ranks-per-node, or cpus_per_gpu in the site")),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"), (PLANNED, "Use --gpus-per-node")),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), (PLANNED, "Use --mem, which is per node")),
}
SHORT = {
    "a": "array",
    "c": "cpus-per-task",
    "D": "chdir",
    "e": "error",
    "G": "gpus",
    "J": "job-name",
    "M": "clusters",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "t": "time",
    "W": "wait",
}
# ctrain, too, takes them into account, by these names
READ = ("account", "constraint", "exclude", "nodelist", "partition", "qos", "reservation")
COMBINED = re.compile(rf"-[{FLAGS}]+([ACpqwx])")  # their letters, behind others


def passed_options(plan: LaunchPlan) -> list[str]:
    """The further options of a job, as they are. Raises UsageError for what contradicts the plan."""
    for option in plan.placement.options:
        _refuse(option)
        if plan.placement.after and re.match(r"--dep|-d", option):
            raise UsageError(f"sbatch option {option!r} is not supported: --after sets it", "Leave out one of them")
    return [option for option in plan.placement.options if not _is_gres(option)]


def asks_for_gpus(plan: LaunchPlan) -> bool:
    return plan.size.gpus_per_node > 0 and "gpus" not in plan.placement.not_requested


def gres(plan: LaunchPlan) -> list[str]:
    """--gres with the GPUs of the plan and whatever else the user requests: only the last one counts for Slurm.

    The user may name the type of the GPUs, but not another number. Raises UsageError.
    """
    constraint = plan.placement.constraint
    gpu_type = f"{constraint.gpu_type}:" if constraint and constraint.gpu_type else ""
    items = [f"gpu:{gpu_type}{plan.size.gpus_per_node}"] if asks_for_gpus(plan) else []
    for option in filter(_is_gres, plan.placement.options):
        for item in filter(None, re.split(r"[=\s]+", option, maxsplit=1)[-1].split(",")):
            if re.match(r"gpu\b", item):
                number = re.search(r":([0-9]+)(?:\(.*\))?$", item)
                if int(number[1] if number else 1) != plan.size.gpus_per_node:
                    raise UsageError(f"sbatch option {option!r} is not supported: {PLANNED}", "Use --gpus-per-node")
                names_type = re.match(r"gpu:([^:]+:[0-9]|[A-Za-z])", item)
                if names_type or not asks_for_gpus(plan):
                    items = [item, *(other for other in items if not re.match(r"gpu\b", other))]
            else:
                items.append(item)
    return [f"--gres={','.join(dict.fromkeys(items))}"] if items else []


def constraint(plan: LaunchPlan) -> dict[str, str]:
    """The options that keep a job from nodes that are none for it, in place of the user's, which they hold."""
    own = plan.placement.constraint
    if not own:
        return {}
    features, excluded = "&".join(own.features), compress_hosts(own.excluded)
    return {name: value for name, value in (("constraint", features), ("exclude", excluded)) if value}


def _is_gres(option: str) -> bool:
    return re.match(r"--gres(?![a-z-])", option) is not None


def require_one_line(option: str) -> str:
    """The option. Raises UsageError if it would end the comment that it stands in, and become a command."""
    if "\n" in option:
        raise UsageError(f"sbatch option {option!r} holds a line break", "Write it in one line")
    return option


def _refuse(option: str) -> None:
    require_one_line(option)
    for name in _names(option):
        if name in REFUSED:
            reason, use = REFUSED[name]
            raise UsageError(f"sbatch option {option!r} is not supported: {reason}", use)
    combined = COMBINED.match(option)
    if combined:
        raise UsageError(
            f"sbatch option {option!r} combines letters: ctrain reads -{combined[1]}, too",
            f"Write -{combined[1]} VALUE apart",
        )
    abbreviated = re.match(r"--([a-z-]+)", option)
    full = [name for name in READ if abbreviated and name.startswith(abbreviated[1]) and name != abbreviated[1]]
    if full:
        raise UsageError(f"sbatch option {option!r} is abbreviated: ctrain reads it, too", f"Write --{full[0]}=VALUE")


def _names(option: str) -> Iterator[str]:
    """The long names of the options in a word, as getopt_long reads it: -Hn4 is --hold --ntasks=4, --out --output."""
    given = re.match(r"--([a-z-]+)", option)
    if given:
        yield given[1] if given[1] in REFUSED else next((name for name in REFUSED if name.startswith(given[1])), "")
    elif re.match(r"-[A-Za-z]", option):
        for letter in option[1:]:
            yield SHORT.get(letter, "")
            if letter not in FLAGS:
                return

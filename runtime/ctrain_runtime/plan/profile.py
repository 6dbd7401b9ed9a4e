"""What --profile asks for, as variables that ctrain_program.py reads in the ranks."""

from __future__ import annotations

import re

from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.options import Options

PROFILE = "CTRAIN_PROFILE"  # the variable that names the profiler
NSYS = "nsys"
TOOLS = ("torch", "pyinstrument", NSYS)
DEFAULT_RANKS, DEFAULT_STEPS = "0", "10-19"
STEPS = re.compile(r"([1-9]\d{0,14})-([1-9]\d{0,14})")
RANKS = re.compile(r"\d{1,9}(,\d{1,9})*")


def variables(options: Options, world_size: int) -> dict[str, str]:
    """The variables of a run with these options; none without --profile. Raises UsageError."""
    if not options.profile:
        for name, value in (("--profile-ranks", options.profile_ranks), ("--profile-steps", options.profile_steps)):
            if value:
                raise UsageError(f"{name} is for --profile alone", f"Add --profile {TOOLS[0]} or {TOOLS[1]}")
        return {}
    return {
        PROFILE: options.profile,
        f"{PROFILE}_RANKS": _ranks(options.profile_ranks or DEFAULT_RANKS, world_size),
        f"{PROFILE}_STEPS": _steps(options.profile_steps or DEFAULT_STEPS),
    }


def _ranks(text: str, world_size: int) -> str:
    if not RANKS.fullmatch(text):
        raise UsageError(f"--profile-ranks must be numbers of ranks, not {text!r}", "As in: --profile-ranks 0,4")
    ranks = sorted(set(map(int, text.split(","))))
    if ranks[-1] >= world_size:
        problem = f"--profile-ranks: rank {ranks[-1]} does not exist, the run has {world_size}"
        raise UsageError(problem, f"They are 0 to {world_size - 1}")
    return ",".join(map(str, ranks))


def _steps(text: str) -> str:
    match = STEPS.fullmatch(text)
    if not match or int(match[1]) > int(match[2]):
        problem = f"--profile-steps must be FIRST-LAST, not {text!r}"
        raise UsageError(problem, f"As in: --profile-steps {DEFAULT_STEPS}")
    return text

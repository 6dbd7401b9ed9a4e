"""The profiles that --profile asks for: whether the program has written some."""

from __future__ import annotations

import shlex
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.profile import PROFILE

SUMMARIES, REPORTS = "*.txt", "*.nsys-rep"  # one for each rank
MISSING = "no profile: its program has not shown so many steps by beat(), or its log tells why (ctrain help profiles)"


def are_wanted(plan: LaunchPlan) -> bool:
    return PROFILE in plan.environment.variables


def note(plan: LaunchPlan) -> str:
    """The line on them at the end of a run; "" if none was asked for."""
    if not are_wanted(plan):
        return ""
    directory = Path(plan.run_directory) / run_files.PROFILES
    if any(directory.glob(REPORTS)):
        return f"profiles: {directory}; open them in Nsight Systems, or see: ctrain report {shlex.quote(plan.run)}"
    if not any(directory.glob(SUMMARIES)):
        return MISSING
    return f"profiles: {directory}; what took longest: ctrain report {shlex.quote(plan.run)}"

"""Submits the runs of a sweep, one after the other: each is in the group's file before the next is submitted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.group import Group, Member, with_job
from ctrain_runtime.run.pick_up import pick_up, refresh
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.remove import check, remove
from ctrain_runtime.run.request import Request
from ctrain_runtime.run.submit import Run, submit


def submit_group(request: Request, group: Group) -> Iterator[Run]:
    """Submit each run of a group that is not submitted yet; yields the run. Raises CtrainError.

    With `at_once`, a run waits for the end of the one so many places before it, however that ends.
    """
    for number, member in enumerate(group.runs):
        if _is_submitted(group.path(member)):
            continue
        run = submit(prepare(_request(request, group, member, number)).launch)
        group = with_job(group, member, run.job_name)
        yield run


def _request(request: Request, group: Group, member: Member, number: int) -> Request:
    parameters = {**request.options.parameters, **member.parameters}
    one = replace(request, options=replace(request.options, name=member.run, parameters=parameters))
    if group.at_once is None or number < group.at_once:
        return one
    before = group.path(group.runs[number - group.at_once])
    waiting = replace(one.options, after=str(before))
    return replace(one, options=waiting, after_any=True) if _has_plan(before) else one


def _is_submitted(path: Path) -> bool:
    """Whether a run was submitted; what a submission that failed has left is removed. Raises CtrainError."""
    with contextlib.suppress(OSError):
        path.rmdir()  # it is empty where ctrain was killed before the submission
    if not _has_plan(path):
        return False
    _, conclusion = refresh(pick_up(path))
    ended = conclusion.record.exit if conclusion else None
    if ended and ended.ending is Ending.NEVER_STARTED:
        remove(check(path, ()))
        return False
    return True


def _has_plan(path: Path) -> bool:
    return (path / run_files.PLAN).is_file()

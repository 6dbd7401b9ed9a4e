"""Whether a run ended for want of memory: by its ranks' cgroups, which count kills, by logs, by the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.base.text import format_size
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.ranks import ANSWER_SECONDS, Rank
from ctrain_runtime.schedulers.protocol import Outcome, OutOfMemory, Status


@dataclass(frozen=True)
class Shortage:
    """`rank` is the one that ran out of memory first, None if unknown; `reason` says who, the limit, what raises it."""

    rank: Optional[Rank]
    reason: str


def shortage(
    plan: LaunchPlan, ranks: list[Rank], failed: Optional[Rank], status: Status, logged: Optional[OutOfMemory]
) -> Optional[Shortage]:
    """The want of memory that ended a run; None if there is no evidence of one."""
    rank = _starved(ranks, failed) or _logged_rank(plan, ranks, logged)
    if rank is None and not logged and status.outcome is not Outcome.OUT_OF_MEMORY:
        return None
    job = f"the job on {logged.host}" if logged and logged.host else "the job"
    who = plan.describe(rank.number, rank.host) if rank else job
    return Shortage(rank, f"{who} ran out of memory{_limit(plan, rank, logged)}")


def _starved(ranks: list[Rank], failed: Optional[Rank]) -> Optional[Rank]:
    """The first rank of whose processes the kernel killed one for want of memory; not if another failed well before."""
    latest = failed.end + ANSWER_SECONDS if failed and failed.end is not None else None
    starved = [rank for rank in ranks if rank.memory_limit is not None and rank.exit_code and rank.end is not None]
    first = min(starved, key=lambda rank: rank.end or 0.0, default=None)
    return first if first and (latest is None or (first.end or 0.0) <= latest) else None


def _logged_rank(plan: LaunchPlan, ranks: list[Rank], logged: Optional[OutOfMemory]) -> Optional[Rank]:
    if logged is None or logged.task is None or plan.tasks != plan.recorded_ranks:
        return None
    return next((rank for rank in ranks if rank.number == logged.task and rank.exit_code != 0), None)


def _limit(plan: LaunchPlan, rank: Optional[Rank], logged: Optional[OutOfMemory]) -> str:
    known = rank.memory_limit if rank and rank.memory_limit else (logged.limit if logged else 0)
    requested = plan.size.memory << 20 if plan.size.memory else 0
    size = known or requested
    limit = f": limit {format_size(size)} per node" if size else ""
    if plan.placement.allocation:
        return f"{limit}. Start the allocation with more, as by --mem"
    return f"{limit}. Request more with --mem, or use fewer ranks per node" if plan.placement.partition else limit

"""Who joined the world of a run: the certificate in its record, by what the scans of its nodes have written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.events import Event, read_node_events

STAGE = "world"
STARTS_BY_NODE = "torchrun"  # a starter of ranks that joins the world of launcher node by its variables
LOOKED = "looked"
JOINED, INDEPENDENT, NESTED, UNPROVEN = "joined", "independent", "nested", "unproven"


@dataclass(frozen=True)
class World:
    """The certificate: `joined` of `of` ranks were seen to join the run's world. `state` is JOINED only if all were,
    and INDEPENDENT where there is none to join."""

    state: str
    joined: int
    of: int


def certify(plan: LaunchPlan, node_events: Iterable[Event]) -> World:
    """The certificate of a run, by the events of its nodes. Without any it is unproven: a lack of evidence shows
    nothing."""
    if plan.program.independent or (plan.size.world_size == 1 and plan.program.launcher != "node"):
        return World(INDEPENDENT, 0, plan.recorded_ranks)
    seen = [event for event in node_events if event.stage == STAGE]
    joined = [rank for event in seen if event.what == "joined" for rank in event.ranks]
    # Where the command starts the ranks, it knows how many they are.
    of = max((event.of for event in seen if event.of), default=0) if plan.program.launcher == "node" else 0
    of, numbers = of or plan.size.world_size, set(joined)
    nested = {rank for event in seen if event.what == "nested" for rank in event.ranks}
    if len(joined) > len(numbers) or (len(nested) > 1 and not numbers):  # two nodes have ranks of the same number
        return World(NESTED, 0, of)
    return World(JOINED if len(numbers) == of else UNPROVEN, len(numbers), of)


def verdict(node_events: Iterable[Event]) -> str:
    """Why the scans have stopped the run; "" if they have not."""
    return next((event.message for event in node_events if event.stage == STAGE and event.what == "stopped"), "")


def note(plan: LaunchPlan, world: World) -> str:
    """The world of a run that is completed, for users; "" for one rank, and if nobody has looked: the run was too
    short, or its nodes have no Python."""
    if world.state == JOINED:
        return f"{JOINED} {world.joined}/{world.of}"
    if world.state == INDEPENDENT:
        return INDEPENDENT if world.of > 1 else ""
    if not any(event.stage == STAGE and event.what == LOOKED for event in read_node_events(Path(plan.run_directory))):
        return ""
    if world.state == NESTED and plan.program.launcher == "node":
        return f"{NESTED}: the command of each node made a world of its own; let it use PET_* or CTRAIN_HOSTS"
    if world.state == NESTED:
        use = "--launcher node if torchrun starts them, or --independent"
        return f"{NESTED}: ranks started ranks of their own, in several worlds; use {use}"
    if world.joined:
        return f"{UNPROVEN}: {world.joined} of {world.of} ranks were seen to join one world"
    launcher, mpi = plan.program.launcher, plan.program.mpi
    if launcher == "mpi" and not mpi.startswith("pmix"):  # its ranks meet by pipes and shared memory
        return f"{UNPROVEN}: whether MPI by {mpi} has formed one world cannot be seen from outside"
    return f"{UNPROVEN}: no rank was seen to join a group; if none does, use --independent or one rank"

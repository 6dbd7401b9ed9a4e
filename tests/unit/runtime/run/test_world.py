from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.events import Event
from ctrain_runtime.run.world import World, certify, note, verdict
from samples.plans import a_job, a_plan, changed
from samples.runs import write_events

PLAN = a_plan(job=a_job(launcher="env"), nodes=2, ranks_per_node=2)
NODE = changed(PLAN, launcher="node")
LOOKED = Event("looked", "world")


def seen(what: str, *ranks: int, of: int = 4) -> Event:
    return Event(what, "world", ranks=ranks, of=of)


@pytest.mark.parametrize(
    ("plan", "events", "world"),
    [
        (PLAN, [LOOKED, seen("joined", 0, 1), seen("joined", 2), seen("joined", 3)], World("joined", 4, 4)),
        (PLAN, [LOOKED, seen("joined", 0, 1)], World("unproven", 2, 4)),
        (PLAN, [LOOKED], World("unproven", 0, 4)),
        (PLAN, [], World("unproven", 0, 4)),
        (PLAN, [seen("nested", 0), seen("nested", 0, 1)], World("nested", 0, 4)),
        (PLAN, [seen("nested", 0)], World("unproven", 0, 4)),  # a launcher on rank 0 alone
        (PLAN, [seen("nested", 0), seen("nested", 2)], World("nested", 0, 4)),
        (PLAN, [seen("nested", 0), seen("joined", 2, 3)], World("unproven", 2, 4)),
        (PLAN, [Event("started", "run", rank=0), Event("measured", "preflight")], World("unproven", 0, 4)),
        (changed(PLAN, independent=True), [seen("joined", 0)], World("independent", 0, 4)),
        (a_plan(job=a_job(launcher="env"), nodes=1, ranks_per_node=1), [], World("independent", 0, 1)),
        # The command says how many ranks it starts; those of two worlds have the same numbers.
        (NODE, [seen("joined", 0, 1, of=6), seen("joined", 2, 3, 4, 5, of=6)], World("joined", 6, 6)),
        (NODE, [seen("joined", 0, 1, of=2), seen("joined", 0, 1, of=2)], World("nested", 0, 2)),
        (NODE, [LOOKED], World("unproven", 0, 4)),
    ],
)
def test_the_certificate_says_what_was_seen(plan: LaunchPlan, events: list[Event], world: World) -> None:
    assert certify(plan, events) == world


@pytest.mark.parametrize(
    ("world", "line"),
    [
        (
            World("unproven", 0, 4),
            "unproven: no rank was seen to join a group; if none does, use --independent or one rank",
        ),
        (World("unproven", 2, 4), "unproven: 2 of 4 ranks were seen to join one world"),
        (
            World("nested", 0, 4),
            "nested: ranks started ranks of their own, in several worlds; "
            "use --launcher node if torchrun starts them, or --independent",
        ),
    ],
)
def test_a_doubt_is_said_only_if_somebody_has_looked(tmp_path: Path, world: World, line: str) -> None:
    (tmp_path / "nodes").mkdir()
    write_events(tmp_path, {"what": "started", "rank": 0}, node=0)
    plan = dataclasses.replace(PLAN, run_directory=str(tmp_path))
    assert note(plan, world) == ""
    write_events(tmp_path, {"stage": "world", "what": "looked"}, node=1)
    assert note(plan, world) == line


def test_a_certificate_is_said_as_it_is() -> None:
    assert note(PLAN, World("joined", 4, 4)) == "joined 4/4"
    assert note(PLAN, World("independent", 0, 4)) == "independent"
    assert note(PLAN, World("independent", 0, 1)) == ""


def test_the_scan_that_has_stopped_a_run_says_why() -> None:
    assert verdict([LOOKED]) == ""
    assert verdict([LOOKED, Event("stopped", "world", code=81, message="each of 2 ranks")]) == "each of 2 ranks"


def test_one_node_whose_command_starts_the_ranks_may_have_a_world() -> None:
    plan = changed(NODE, nodes=1, ranks_per_node=1)
    assert certify(plan, [seen("joined", 0, 1, of=2)]) == World("joined", 2, 2)


def test_nodes_whose_commands_make_worlds_of_their_own_are_named(tmp_path: Path) -> None:
    """As those of deepspeed, which takes its rendezvous from no variable."""
    (tmp_path / "nodes").mkdir()
    write_events(tmp_path, {"stage": "world", "what": "looked"}, node=0)
    plan = dataclasses.replace(NODE, run_directory=str(tmp_path))
    reason = "the command of each node made a world of its own; let it use PET_* or CTRAIN_HOSTS"
    assert note(plan, World("nested", 0, 2)) == f"nested: {reason}"


def test_mpi_that_cannot_be_seen_is_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    write_events(tmp_path, {"stage": "world", "what": "looked"}, node=0)
    plan = changed(PLAN, launcher="mpi", mpi="hydra", run_directory=str(tmp_path))
    reason = "whether MPI by hydra has formed one world cannot be seen from outside"
    assert note(plan, World("unproven", 0, 4)) == f"unproven: {reason}"
    assert "no rank was seen" in note(changed(plan, mpi="pmix_v4"), World("unproven", 0, 4))

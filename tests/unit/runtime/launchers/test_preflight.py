from __future__ import annotations

import pytest

from ctrain_runtime.launchers import fragments
from ctrain_runtime.launchers.preflight import prove
from ctrain_runtime.plan.model import Preflight
from samples.plans import a_plan, changed


@pytest.mark.parametrize(("backend", "by_tcp"), [("gloo", "1.5"), ("nccl", "0")])
def test_sockets_are_held_to_what_is_expected_of_gloo_only(backend: str, by_tcp: str) -> None:
    plan = changed(a_plan(nodes=2), preflight=Preflight(True, "requested", backend, 1.5))
    (text,) = prove(plan)
    assert f"nodes 2 {backend} {by_tcp} 8 " in text
    assert f"world.py mpi 16 {backend} 1.5 " in text


def test_on_one_node_no_nodes_meet() -> None:
    plan = changed(a_plan(nodes=1), preflight=Preflight(True, "requested"))
    (text,) = prove(plan)
    assert " nodes 1 gloo 0 8 ranks " in text  # which checks the GPUs
    assert "world.py mpi 8 gloo 0 " in text
    assert " nodes " not in prove(changed(plan, gpus_per_node=0))[0]


def test_no_preflight() -> None:
    assert prove(a_plan()) == []


def test_the_preflight_has_the_libraries_of_the_run() -> None:
    """Without them NCCL's plugin does not load, nor CUDA where the driver is older than the image's: the preflight
    would refuse a run that works."""
    plan = changed(a_plan(nodes=2), preflight=Preflight(True, "requested"), library_paths=("/hostlib",))
    (text,) = prove(plan)
    assert plan.image.native_driver
    assert f"{fragments.INSIDE} paths /hostlib driver {plan.image.native_driver} run /bin/sh " in text

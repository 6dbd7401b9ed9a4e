"""What is copied to the nodes: by request, by what the site has, and by what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from ctrain_runtime.errors import ConfigError, CtrainError, UsageError
from ctrain_runtime.plan.image_choice import choose_image
from ctrain_runtime.plan.model import DataCopy, Inputs, Mount, Staging
from ctrain_runtime.plan.staging import copy_seconds, plan_staging, shared_seconds
from samples.plans import RUN, a_plan, a_site, an_image, some_facts

SITE = a_site(staging="/local")
SIZE = 8_000_000_000


def decided(mode: str = "", nodes: int = 2, site: Any = SITE, interactive: bool = False, **image: Any) -> Staging:
    planned = choose_image(an_image(**{"size": SIZE, **image}), Inputs(), some_facts(), RUN, gpus="nvidia")
    return plan_staging(mode, site, planned, nodes, interactive=interactive)


@pytest.mark.parametrize(("nodes", "copies"), [(1, False), (8, False), (50, False), (100, True), (1000, True)])
def test_auto_copies_only_where_it_surely_pays(nodes: int, copies: bool) -> None:
    assert decided(nodes=nodes).copies is copies
    assert decided("auto", nodes=nodes) == decided(nodes=nodes)
    assert decided(nodes=nodes).directory == "/local"  # a copy that a node has is used in any case


def test_the_reason_has_both_costs() -> None:
    assert decided(nodes=4).reason == (
        "only where /local has a copy already (a copy takes about 1 min 22 s; to read 4 x 2.8 GB of the shared image,"
        " about 5.6 s)"
    )
    assert decided(nodes=512).reason == (
        "copied to /local on each node (a copy takes about 1 min 23 s; to read 512 x 2.8 GB of the shared image, about"
        " 11 min 57 s)"
    )


def test_by_request() -> None:
    assert decided("always", nodes=1).copies
    assert decided("never", nodes=1000) == Staging(reason="off: --stage never")


def test_a_shell_waits_for_no_copy_but_uses_one() -> None:
    shell = decided(nodes=1000, interactive=True)
    assert (shell.directory, shell.copies) == ("/local", False)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"site": a_site()}, "site neuron names no directory on the nodes' own disks"),
        ({"digest": ""}, "it has no digest"),  # a sandbox
    ],
)
def test_where_no_copy_is_possible(parts: dict[str, Any], problem: str) -> None:
    assert decided(nodes=1000, **parts) == Staging(reason=f"off: {problem}")
    with pytest.raises(UsageError, match=f"cannot copy the image to nodes: {problem}"):
        decided("always", **parts)


def test_a_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "kim")
    assert decided(site=a_site(staging="/mnt/bb/$USER")).directory == "/mnt/bb/kim"
    monkeypatch.delenv("NVME", raising=False)
    with pytest.raises(ConfigError, match="staging: variable not set"):
        decided(site=a_site(staging="/mnt/bb/$NVME"))


def test_a_relative_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="staging must be an absolute path, not 'scratch'"):
        decided(site=a_site(staging="scratch"))


def test_the_plan_has_the_decision() -> None:
    plan = a_plan(site=SITE, stage="always", nodes=2)
    assert (plan.staging.directory, plan.staging.copies, plan.image.size) == ("/local", True, 5)
    assert plan.staging.reason.startswith("copied to /local on each node")


def test_the_plan_has_the_copy_of_the_data_set() -> None:
    mount = Mount("/images.sqfs", "/data", read_only=True, is_image=True)
    plan = a_plan(site=SITE, data="/images.sqfs", stage_data=True, digest_and_size=lambda _: ("sha256:5e1f", 4))
    assert plan.staging.data_copy == DataCopy(mount, "sha256:5e1f", 4, "/local")
    assert a_plan(site=SITE, data="/images.sqfs").staging.data_copy is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"site": SITE}, "--stage-data: the run has no data set. Pass --data FILE.sqfs"),
        ({"site": SITE, "data": "/images"}, "not the directory /images. Make one, once, with: mksquashfs"),
        ({"data": "/x.sqfs"}, "site neuron names no directory on the nodes' own disks. Set"),
        ({"site": a_site(staging="/local", required=("account",)), "data": "/x.sqfs"}, "requires --account"),
        ({"site": a_site(staging="/local", gpu_order=(1,)), "data": "/x.sqfs"}, "gpu_order must hold"),
    ],
)
def test_no_data_set_is_read_for_what_is_refused(parts: dict[str, Any], message: str) -> None:
    read: list[Mount] = []
    with pytest.raises(CtrainError) as caught:
        a_plan(stage_data=True, digest_and_size=lambda mount: (read.append(mount), ("", 0))[1], **parts)
    assert message in str(caught.value)
    assert read == []


def test_a_copy_through_the_chain_hardly_depends_on_the_number_of_nodes() -> None:
    assert copy_seconds(SIZE, 512) < 1.1 * copy_seconds(SIZE, 8)
    assert shared_seconds(SIZE, 512) == 64 * shared_seconds(SIZE, 8)

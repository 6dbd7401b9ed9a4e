"""The real parts: the one-machine cluster of tests/cluster with the image of definitions/ and an ordinary user."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.cluster import ENTRY, Cluster

PROVISION = str(Path(ENTRY).with_name("provision"))
DOWN = 3  # the exit code of `cluster status` when there is no cluster


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests below this folder take minutes and come last. Among several workers (pytest-xdist) they come first, so
    that none has to wait for another at the end; those with the cluster are one worker's, for there can be one only.
    """
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    with_cluster = {item.path for item in ours if "cluster" in getattr(item, "fixturenames", ())}
    for item in ours:
        item.add_marker(pytest.mark.integration)
        group = "cluster" if item.path in with_cluster else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    ours.sort(key=lambda item: item.path not in with_cluster)
    others = [item for item in items if item not in ours]
    items[:] = [*ours, *others] if hasattr(config, "workerinput") else [*others, *ours]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Up for the whole session; taken down at its end unless it was up before."""
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("CI must run as root: the integration tests bring up a cluster")
        pytest.skip("not root: the one-machine cluster can't be made here; unit tests still say something")
    was_down = (
        subprocess.run([ENTRY, "status"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == DOWN
    )
    subprocess.run([ENTRY, "up"], check=True)
    subprocess.run([PROVISION], check=True)
    state = Path(os.environ.get("CTRAIN_CLUSTER_DIR", "/var/lib/ctrain-cluster"))
    yield Cluster(state, state / "home" / "researcher")
    if was_down:
        subprocess.run([ENTRY, "down"], check=True)


@pytest.fixture(autouse=True)
def clean_runs(request: pytest.FixtureRequest) -> None:
    """Runs are named by their tests; those of an earlier session would be in the way."""
    if "cluster" in request.fixturenames:
        home = request.getfixturevalue("cluster").home
        subprocess.run(["rm", "-rf", str(home / "ctrain-runs")], check=True)

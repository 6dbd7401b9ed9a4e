"""The real parts: the one-machine cluster of tests/cluster with the image of definitions/ and an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples import foreign_torch as foreign
from samples.cluster import ENTRY, Cluster
from samples.kept import kept

PROVISION = str(Path(ENTRY).with_name("provision"))
DOWN = 3  # the exit code of `cluster status` when there is no cluster
# Fixtures that give the cluster more nodes, the fewest first.
LARGER = ("four_nodes", "many_nodes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests below this folder take minutes and come last. Those that need the cluster are marked: there is one
    cluster only, but `make test` runs the others beside it. It starts anew with each other number of nodes, so tests
    that want more come at the end."""
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.integration)
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
    items[:] = [item for item in items if item not in ours] + sorted(ours, key=_size)


def _size(item: pytest.Item) -> int:
    """0 for a test that the cluster is large enough for."""
    wanted = [number for number, name in enumerate(LARGER, 1) if name in getattr(item, "fixturenames", ())]
    return max(wanted, default=0)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Up for the whole session; at its end as it was before: down, or with as many nodes."""
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
    up = Cluster(state, state / "home" / "researcher")
    # Tests must not depend on which nodes are idle; test_partitions.py is about the choice.
    up.write(".config/ctrain/sites/generic-slurm.yaml", "partition: cas_v100_2\n")
    before = ["up", "--nodes", str(up.nodes)]
    yield up
    subprocess.run([ENTRY, *(["down"] if was_down else before)], check=True)


@pytest.fixture(scope="session")
def four_nodes(cluster: Cluster) -> Cluster:
    """The cluster with that many nodes at least, until the end of the session."""
    cluster.grow(4)
    return cluster


@pytest.fixture(scope="session")
def pytorch_cpu() -> Path:
    """The image of that name, in the builder's cache: for tests that need no cluster."""
    argv = [str(Path(sys.executable).with_name("ctrain")), "build", "pytorch-cpu", "--json"]
    built = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    return Path(built["images"][0]["path"])


@pytest.fixture(scope="session")
def foreign_image(pytorch_cpu: Path) -> Path:
    """An image with torch and MPICH that ctrain did not build."""
    digest = json.loads(pytorch_cpu.with_suffix(".json").read_text())["digest"]
    made_from = " ".join((digest, foreign.DEFINITION, *foreign.WHEELS))
    return kept("foreign.sif", made_from, lambda path: foreign.build(pytorch_cpu, path))


@pytest.fixture(scope="session")
def foreign_torch(cluster: Cluster, foreign_image: Path) -> Iterator[Path]:
    """The same where all users can read it."""
    directory = Path(tempfile.mkdtemp(dir=cluster.state))
    path = directory / "foreign.sif"
    shutil.copyfile(foreign_image, path)
    directory.chmod(0o755)
    path.chmod(0o644)
    yield path
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def clean_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs are named by their tests; those of an earlier session would be in the way. What a test leaves when it fails
    ends with it: jobs would keep nodes from all that follow."""
    if "cluster" not in request.fixturenames:
        yield
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    places = (cluster.home / "ctrain-runs", cluster.home / ".local/state/ctrain")  # runs, and where others are
    subprocess.run(["rm", "-rf", *map(str, places)], check=True)
    before = cluster.jobs()
    yield
    cluster.end_all(but=before)

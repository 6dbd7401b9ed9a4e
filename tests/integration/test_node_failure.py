"""A node that fails during a training: the run ends with the reason, and goes on from its checkpoint later.

An administrator (on sites, a health check) says so at once; test_restarts.py waits until Slurm notices by itself.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.cluster import ENTRY, Cluster, until

# All nodes share the machine's two cores: more threads would only wait for each other.
RUN = ("ctrain", "run", "gpt", "--nodes", "2", "--ranks-per-node", "1", "--image", "pytorch-cpu", "--preflight", "off")
STEPS, SAVED_EVERY = 250, 50
SETTINGS = (f"steps={STEPS}", f"save_every={SAVED_EVERY}", "layers=2", "width=64", "context=32", "batch=16")
SETTINGS += ("sample=0", "strategy=ddp")
BOUND = 2e-6  # as in test_equality.py


@pytest.fixture
def mended(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which has all its nodes and no job after the test."""
    yield cluster
    cluster.run("scancel", "--user", "researcher")
    subprocess.run([ENTRY, "start-node", "node02"], check=True)


def losses(run: Path) -> dict[int, float]:
    """By step; the last line may be half-written."""
    text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
    return {line["step"]: line["loss"] for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines())}


def test_a_node_that_fails_is_named_and_the_training_goes_on(mended: Cluster) -> None:
    cluster, argv = mended, [*RUN, "--env", "OMP_NUM_THREADS=1"]
    failed, resumed = cluster.runs("failed"), cluster.runs("resumed")
    first = cluster.start(*argv, "--name", "failed", "--", *SETTINGS)
    until(lambda: max(losses(failed), default=0) >= 55, "step 55", 200)
    subprocess.run([ENTRY, "kill-node", "node02"], check=True)
    cluster.administer("scontrol", "update", "nodename=node02", "state=down", "reason=test")
    output, _ = first.communicate(timeout=200)
    reason = "node failure (NODE_FAIL): no exit status from node02"
    assert first.returncode and f"\n{reason}\n" in output and "failed first" not in output, output
    record = cluster.record("failed")
    assert record["exit"] == {"code": first.returncode, "reason": reason, "by": "scheduler", "ending": "node failure"}
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["node failure"]
    before = losses(failed)
    for path in (failed / "checkpoint").glob("step-????????"):
        if int(path.name[-8:]) > max(before) - 3:  # so that there are steps to compare
            subprocess.run(["rm", "-r", str(path)], check=True)
    subprocess.run([ENTRY, "start-node", "node02"], check=True)
    second = cluster.run(*argv, "--name", "resumed", "--resume", str(failed), "--", *SETTINGS)
    assert second.returncode == 0, second.stdout + second.stderr
    assert cluster.record("resumed")["nodes"] == ["node01", "node02"]
    after = losses(resumed)
    both = sorted(before.keys() & after.keys())
    assert min(after) % SAVED_EVERY == 1 and max(after) == STEPS and len(both) >= 3
    assert [after[step] for step in both] == pytest.approx([before[step] for step in both], rel=BOUND)

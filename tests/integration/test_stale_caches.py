"""Ends of runs where login node and nodes see the home through caches of 30 s, as by NFS: `cluster up --stale 30`.

CTRAIN_STALE=whole runs all cases, also those that wait until caches have expired.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.cluster import ENTRY, Cluster, started, until

SECONDS = 30
WHOLE = os.environ.get("CTRAIN_STALE") == "whole"
NODES = ("--image", "pytorch-cpu", "--launcher", "env", "--preflight", "off", "--nodes", "2")
whole = pytest.mark.skipif(not WHOLE, reason="minutes of runs through caches of 30 s: CTRAIN_STALE=whole")


@pytest.fixture(scope="module")
def stale(cluster: Cluster) -> Iterator[Cluster]:
    try:
        subprocess.run([ENTRY, "up", "--stale", str(SECONDS)], check=True)
        yield cluster
    finally:
        subprocess.run([ENTRY, "up"], check=True)  # ends jobs, too
        subprocess.run(["rm", "-rf", *cluster.home.glob("stale-*")], check=True)


def runs(cluster: Cluster, name: str) -> tuple[tuple[str, ...], Path]:
    """The options of a run whose directory no cache knows, and that directory as it truly is."""
    parent = cluster.home / f"stale-{name}"
    subprocess.run(["rm", "-rf", str(parent)], check=True)
    return (*NODES, "--runs", str(parent), "--name", name), parent / name


def record(run: Path) -> dict[str, object]:
    data = json.loads((run / "record.json").read_text())
    assert isinstance(data, dict)
    return data


def end_of(cluster: Cluster, name: str, program: str) -> tuple[int, str, dict[str, object]]:
    """The exit code, output and record of a run that is watched to its end."""
    options, run = runs(cluster, name)
    done = cluster.run("ctrain", "run", *options, "--", "/bin/sh", "-c", program)
    return done.returncode, done.stdout, record(run)


def test_a_failure_that_is_watched_keeps_code_rank_and_output(stale: Cluster) -> None:
    program = '[ "$RANK" = 2 ] || exec sleep 60; sleep 8; echo the reason; exit 7'
    code, output, written = end_of(stale, "failed", program)
    reason = "rank 2 on node02 failed first: exit code 7"
    assert (code, written["exit"]) == (7, {"code": 7, "reason": reason, "by": "program", "ending": "failed"}), output
    assert "  | the reason" in output.splitlines()
    assert written["doubtful"] is False


def test_a_run_that_somebody_looked_at_before_its_end(stale: Cluster) -> None:
    """What one session has looked at, the caches of its login node remember for the next one."""
    options, run = runs(stale, "looked")
    # Listings are fresh, so the program is told by one.
    wait = 'until ls "$CTRAIN_RUN_DIR" | grep -q go-on; do sleep 0.2; done'
    program = f"echo begun; {wait}; echo last words; exit 5"
    assert stale.run("ctrain", "submit", *options, "--", "/bin/sh", "-c", program).returncode == 0
    until(lambda: started(run) == 4, "the start")
    first = stale.start("ctrain", "attach", str(run))
    assert first.stdout
    assert any("begun" in line for line in iter(first.stdout.readline, ""))
    os.killpg(first.pid, signal.SIGHUP)
    first.communicate(timeout=60)
    (run / "go-on").touch()
    until(lambda: '"after"' in (run / "events.jsonl").read_text(), "the end")
    done = stale.run("ctrain", "attach", str(run))
    assert done.returncode == 5, done.stdout + done.stderr
    assert "  | last words" in done.stdout.splitlines() or "last words" in done.stdout.splitlines()
    ended = record(run)["exit"]
    assert isinstance(ended, dict)
    assert (ended["code"], ended["by"]) == (5, "program")


@whole
@pytest.mark.parametrize("seconds", [0, 2, 10, SECONDS + 5])
def test_success_is_success(stale: Cluster, seconds: int) -> None:
    program = f"echo begun; sleep {seconds}; echo done"
    code, output, written = end_of(stale, f"done-{seconds}", program)
    assert (code, written["doubtful"]) == (0, False), output
    assert written["exit"] == {"code": 0, "reason": "completed", "by": "program", "ending": "completed"}
    assert output.splitlines().count("done") == 1


@whole
def test_a_job_that_was_killed_is_looked_at_again(stale: Cluster) -> None:
    """What nobody writes is waited for, and the record stays in doubt until caches have expired."""
    options, run = runs(stale, "killed")
    assert stale.run("ctrain", "submit", *options, "--", "sleep", "600").returncode == 0
    until(lambda: started(run) == 4, "the start")
    pids = subprocess.run(["pgrep", "-f", f"{run}/(job|task).sh"], capture_output=True, text=True).stdout.split()
    subprocess.run(["kill", "-KILL", *pids, *_children(pids)], check=False)
    done = stale.run("ctrain", "attach", str(run))
    assert done.returncode != 0
    assert "failed first" in done.stdout or "job ended" in done.stdout, done.stdout


def _children(pids: list[str]) -> list[str]:
    found = subprocess.run(["pgrep", "--parent", ",".join(pids)], capture_output=True, text=True).stdout
    return found.split()

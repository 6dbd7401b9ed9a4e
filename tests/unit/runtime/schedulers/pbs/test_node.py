"""node.sh, run as pbs_tmrsh does on one of the nodes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

from ctrain_runtime import payload
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.site.model import Site
from samples.plans import GPU_PARTITION, a_job, a_launch, a_plan, some_facts
from samples.programs import SYSTEM, write_program
from samples.runs import wait_for

TASK = """\
trap 'echo TERM >>"$CTRAIN_RUN_DIR/log"; exit 3' TERM
trap 'echo USR1 >>"$CTRAIN_RUN_DIR/log"' USR1
echo "up $CTRAIN_TASK $NODE_RANK" >>"$CTRAIN_RUN_DIR/log"
while :; do sleep 0.05; done
"""
Start = Callable[[str], "subprocess.Popen[bytes]"]


PARTITION = dataclasses.replace(GPU_PARTITION, nodes=1000, cpu_bind="")


def a_pbs_plan(run: Path, **parts: Any) -> LaunchPlan:
    site, facts = Site(name="ours", scheduler="pbs"), some_facts(cluster=Cluster((PARTITION,)))
    return a_plan(site=site, facts=facts, job=a_job(launcher="env"), run_directory=run, **parts)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(TASK) runs node 1's one task of a step named 7."""
    for name in ("ctrain.bash", "node.sh"):
        (tmp_path / name).write_text(
            payload.text(name).replace("\nct_grace=10 ct_asked_grace=10 ", "\nct_grace=5 ct_asked_grace=5 ")
        )
    (tmp_path / "signals").mkdir()
    (tmp_path / "logs").mkdir()
    started: list[subprocess.Popen[bytes]] = []

    def begin(task: str) -> subprocess.Popen[bytes]:
        (tmp_path / "task.sh").write_text(task)
        argv = ["/bin/bash", "-p", f"{tmp_path}/node.sh", SYSTEM, "node00", "61000", "7", "1", ":", "1", "1", "task.sh"]
        started.append(subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
    mark = f"CTRAIN_RUN_DIR={tmp_path}".encode()
    wait_for(lambda: not [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path).split(b"\0")])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def log(run: Path) -> list[str]:
    return (run / "log").read_text().splitlines() if (run / "log").exists() else []


def test_the_code_of_a_task_is_that_of_its_node(start: Start, tmp_path: Path) -> None:
    assert start('echo "$CTRAIN_TASK of $NODE_RANK at $MASTER_ADDR"; exit 5\n').wait(timeout=60) == 5
    assert (tmp_path / "logs/node1.out").read_text() == "1 of 1 at node00\n"


def test_a_node_that_starts_late_gets_the_signals_of_its_step(start: Start, tmp_path: Path) -> None:
    for name in ("6.1001.TERM", "7.1001.USR1", "7.1002.TERM", "7.x.USR1", "77.1001.USR1"):
        (tmp_path / "signals" / name).touch()
    assert start(TASK).wait(timeout=60) == 3
    assert log(tmp_path)[0] == "up 1 1"
    assert sorted(log(tmp_path)[1:]) in (["TERM", "USR1"], ["TERM"])  # the end may come before what warned of it


def test_each_signal_comes_once_and_by_the_directory_alone(start: Start, tmp_path: Path) -> None:
    node = start(TASK)
    wait_for(lambda: log(tmp_path) == ["up 1 1"])
    os.killpg(node.pid, signal.SIGUSR1)  # as PBS does on the first host
    (tmp_path / "signals/7.1001.USR1").touch()
    wait_for(lambda: len(log(tmp_path)) > 1)
    os.killpg(node.pid, signal.SIGTERM)
    (tmp_path / "signals/7.9999.TERM").touch()
    assert node.wait(timeout=60) == 3
    assert log(tmp_path) == ["up 1 1", "USR1", "TERM"]


def test_tasks_are_ended_if_what_waits_for_them_is_killed(start: Start, tmp_path: Path) -> None:
    node = start(TASK)
    wait_for(lambda: log(tmp_path) == ["up 1 1"])
    os.killpg(node.pid, signal.SIGKILL)
    wait_for(lambda: log(tmp_path) == ["up 1 1", "TERM"])


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 1), (500, 1), (501, 2), (1000, 2)])
def test_nodes_ask_at_most_500_times_a_second(tmp_path: Path, nodes: int, seconds: int) -> None:
    job = a_launch(a_pbs_plan(tmp_path, nodes=nodes)).scripts["job.sh"]
    assert f"\nuse_tm {seconds} /bin/bash " in job


@pytest.mark.parametrize("tm", ["exit 5", "echo 'pbs_tmrsh: task not started' >&2; exit 254", "kill -KILL $$"])
def test_of_a_node_only_the_words_of_pbs_are_in_the_log_of_the_job(tmp_path: Path, tm: str) -> None:
    """Bash's own, of a pbs_tmrsh that is killed with the job's session, would name a line of ctrain.bash."""
    (tmp_path / "ctrain.bash").write_text(payload.text("ctrain.bash"))
    (tmp_path / "logs").mkdir()
    write_program(tmp_path / "pbs_tmrsh", f"#!/bin/bash\n{tm}\n")
    script = f"run={tmp_path}; . $run/ctrain.bash; ct_host_count=1 hosts=(n1); use_tm 1 node.sh; run_on_nodes 1 task.sh"
    environment = {
        "PATH": f"{tmp_path}:{SYSTEM}",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "61000",
        "PBS_CONF_FILE": "/none",
    }
    done = subprocess.run(
        ["/bin/bash", "-p", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ("pbs_tmrsh: task not started\n" if "echo" in tm else "")
    assert done.returncode == {"exit 5": 5, "kill -KILL $$": 137}.get(tm, 254)

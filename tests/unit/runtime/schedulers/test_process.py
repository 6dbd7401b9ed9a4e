from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.protocol import Outcome, Status
from samples.plans import a_plan
from samples.scripts import is_running, wait_until

ENDED = Status("ended", outcome=Outcome.UNKNOWN)


def start(run: Path, script: str, *argv: str) -> str:
    (run / "logs").mkdir(parents=True)
    launch = Launch(a_plan(run_directory=run), argv or ("/bin/bash", "-c", script), {})
    return process.start(launch)


def pid_of(job_id: str) -> int:
    return int(job_id.split(":")[-2])


def test_a_process_and_its_log(tmp_path: Path) -> None:
    job_id = start(tmp_path / "run", "pwd; echo problem >&2; cat")
    wait_until(lambda: process.status(job_id) == ENDED)
    assert (tmp_path / "run/logs/job.log").read_text() == f"{tmp_path / 'run'}\nproblem\n"
    assert process.name(job_id) == f"process {pid_of(job_id)}"
    process.cancel(job_id, tmp_path / "run")  # of what has ended does nothing


def test_a_process_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Ctrl-C on the terminal reaches ctrain alone."""
    job_id = start(tmp_path / "run", "sleep 60")
    assert process.status(job_id) == Status("running")
    assert os.getsid(pid_of(job_id)) == pid_of(job_id)
    process.cancel(job_id, tmp_path / "run")
    wait_until(lambda: process.status(job_id) == ENDED)


def test_the_id_is_what_the_script_itself_says(tmp_path: Path) -> None:
    """So that another process that reads its events finds the same."""
    job_id = start(tmp_path / "run", f'echo "{process.JOB_ID}"')
    wait_until(lambda: process.status(job_id) == ENDED)
    assert (tmp_path / "run/logs/job.log").read_text() == f"{job_id}\n"


def test_the_id_of_what_has_ended_before_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_time = process._start_time

    def late(pid: int, **options: bool) -> Optional[int]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return start_time(pid, **options)

    monkeypatch.setattr(process, "_start_time", late)
    job_id = start(tmp_path / "run", f'echo "{process.JOB_ID}"')
    assert (tmp_path / "run/logs/job.log").read_text() == f"{job_id}\n"


def test_a_process_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            taken = f"{socket.gethostname()}:{other.pid}:1"
            assert process.status(taken) == ENDED
            process.cancel(taken, tmp_path)
            assert other.poll() is None
        finally:
            other.kill()


def test_a_process_of_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.5)
    note = "the run is on gpu01: whether it lives can be seen there alone"
    assert process.status("gpu01:1:2") == Status("running", note=note)
    (tmp_path / "events.jsonl").write_text('{"what": "started"}\n')
    with pytest.raises(
        SchedulerError, match=r"cannot cancel process 1 of gpu01: no answer from gpu01. Run ctrain cancel on"
    ):
        process.cancel("gpu01:1:2", tmp_path)
    assert (tmp_path / "cancelled").read_text() == f"on {socket.gethostname()}\n"
    (tmp_path / "events.jsonl").write_text('{"what": "signalled"}\n')
    process.cancel("gpu01:1:2", tmp_path)
    with pytest.raises(SchedulerError) as caught:
        process.cancel("gpu01:1:2", tmp_path / "gone")
    problem = f"cannot cancel process 1 of gpu01: {tmp_path}/gone/cancelled: No such file or directory"
    assert str(caught.value) == f"{problem}. Run ctrain cancel on gpu01"


def test_cancel_kills_what_a_killed_job_script_left_and_nothing_else(tmp_path: Path) -> None:
    run, pids = tmp_path / "run", tmp_path / "pids"
    script = f"""\
CTRAIN_RUN_DIR={run} setsid sleep 600 & echo $! >>{pids}
CTRAIN_RUN_DIR={run}2 setsid sleep 600 & echo $! >>{pids}
CTRAIN_RUN_DIR=/x X=CTRAIN_RUN_DIR={run} setsid sleep 600 & echo $! >>{pids}
wait"""
    job_id = start(run, script)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    left, other, third = map(int, pids.read_text().split())
    # Until then each is a fork of the job's script, and has the environment and the arguments of that.
    wait_until(lambda: all(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in (left, other, third)))
    os.kill(pid_of(job_id), signal.SIGKILL)
    wait_until(lambda: process.status(job_id) == ENDED)
    process.cancel(job_id, run)
    wait_until(lambda: not is_running(left))
    assert is_running(other)
    assert is_running(third)
    for pid in (other, third):
        os.kill(pid, signal.SIGKILL)


def test_a_program_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match=r"cannot start /no/such: No such file or directory"):
        start(tmp_path / "run", "", "/no/such")

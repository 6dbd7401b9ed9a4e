from __future__ import annotations

import time
from pathlib import Path

import pytest
from ctrain_runtime.schedulers.handle import Status

from ctrain_runtime.plan.model import Launch
from ctrain_runtime.schedulers import process
from samples.plans import a_plan


def start(run: Path, script: str) -> process.Process:
    (run / "logs").mkdir(parents=True)
    return process.start(Launch(a_plan(run_directory=run), ("/bin/bash", "-c", script), {}))


@pytest.mark.parametrize(("code", "status"), [(0, Status("ended")), (3, Status("ended", "exit code 3"))])
def test_a_process_and_how_it_ends(tmp_path: Path, code: int, status: Status) -> None:
    started = start(tmp_path / "run", f"pwd; echo problem >&2; cat; exit {code}")
    assert started.popen.wait() == code
    assert started.status() == status
    assert (tmp_path / "run/logs/job.log").read_text() == f"{tmp_path / 'run'}\nproblem\n"
    assert started.name == f"process {started.popen.pid}"
    started.cancel()  # of what has ended does nothing


def test_cancel_ends_all_that_was_started(tmp_path: Path) -> None:
    started = start(tmp_path / "run", "sleep 60 & echo $!; wait")
    log = tmp_path / "run/logs/job.log"
    while not log.read_text():
        time.sleep(0.01)
    assert started.status() == Status("running")
    started.cancel()
    assert started.popen.wait() == -15
    assert started.status() == Status("ended", "exit code -15")
    while runs(log.read_text().strip()):
        time.sleep(0.01)


def runs(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or between that and the reading
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"  # init reaps it in its own time

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Exit
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers.protocol import Status
from samples.runs import StandIn, submitted, write_end, write_events, write_ranks

Out = pytest.CaptureFixture[str]


@pytest.fixture
def scheduler() -> StandIn:
    return StandIn()


@pytest.fixture
def run(tmp_path: Path, scheduler: StandIn, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = submitted(tmp_path / "ctrain-runs/one", scheduler, nodes=2, ranks_per_node=2)
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    return run


def status(capsys: Out, *arguments: str) -> dict[str, str]:
    """The rows that `ctrain status` prints."""
    assert main(RUNTIME_VERBS, ["status", "--site", "local", *arguments]) == 0
    return {line[:10].strip(): line[10:] for line in capsys.readouterr().out.splitlines()}


def test_a_job_that_waits(run: Run, scheduler: StandIn, capsys: Out) -> None:
    scheduler.statuses = [Status("waiting", "Resources", starts_at="2030-01-02T03:04:05")]
    assert status(capsys) == {
        "run": f"one  ->  {run.path}",
        "state": "waiting (Resources), expected to start 2030-01-02 03:04",
        "job": "job 7",
        "nodes": "2 requested",
    }


def test_a_run_that_trains(run: Run, capsys: Out) -> None:
    now = time.time()
    write_events(run.path, {"what": "started", "stage": "before", "time": now - 600, "job": "7"})
    write_ranks(run.path, None, None, None)
    (run.path / "logs/rank0.log").write_text("a\nepoch \x1b[1mone\n\n")
    (run.path / "metrics.jsonl").write_text('{"step": 1, "steps": 4, "loss": 2}\n')
    rows = status(capsys, "7")
    assert rows["state"] == "running for 10 min 0 s of 01:00:00, 50 min 0 s left"
    assert rows["nodes"] == "gpu00, gpu01: 3 of 4 ranks started"
    assert rows["progress"] == "step 1/4, loss 2.00, ETA 30 min 0 s"
    assert rows["output"].endswith("s ago: epoch  [1mone")
    assert main(RUNTIME_VERBS, ["status", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["state"], data["ranks_started"], data["ranks"], data["metrics"]["loss"]) == ("running", 3, 4, 2)


def test_nobody_knows(run: Run, scheduler: StandIn, capsys: Out) -> None:
    write_events(run.path, {"what": "started", "stage": "before", "time": time.time() - 600, "job": "7"})
    scheduler.statuses = [Status("running", note="slurm does not answer; retrying")]
    rows = status(capsys, "one")
    assert rows["state"] == "unknown, if it goes on for 10 min 0 s of 01:00:00, 50 min 0 s left"
    assert rows["note"] == "slurm does not answer; retrying"


def test_the_first_to_look_concludes_a_run_that_has_ended(run: Run, capsys: Out) -> None:
    write_ranks(run.path, 0, 0, 0, 0)
    write_end(run.path, 0)
    assert status(capsys)["state"] == "completed after 21 s"
    assert record.load(run.path).exit == Exit(0, "completed", "program", Ending.COMPLETED)


def test_attempts_and_reasons_are_told(run: Run, capsys: Out) -> None:
    again = dataclasses.replace(run.record.attempts[0], job_id="8", name="job 8")
    ended = Exit(143, "time limit reached (TIMEOUT)", "scheduler", Ending.TIME_LIMIT)
    record.save(dataclasses.replace(run.record, attempts=(*run.record.attempts, again), exit=ended))
    rows = status(capsys)
    assert (rows["job"], rows["state"]) == ("job 8, attempt 2", "time limit: time limit reached (TIMEOUT)")


def test_without_runs(capsys: Out, tmp_path: Path) -> None:
    assert main(RUNTIME_VERBS, ["status"]) == 71
    assert capsys.readouterr().err.startswith(f"ctrain: no runs in {tmp_path}/ctrain-runs.")

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import record
from ctrain_runtime.schedulers.protocol import Outcome, Status
from ctrain_runtime.schedulers.slurm import ownership
from samples.plans import LOCAL, some_facts
from samples.programs import write_program
from samples.runs import StandIn, submitted, write_end, write_ranks

GONE = Status("ended", outcome=Outcome.UNKNOWN)
Out = pytest.CaptureFixture[str]


def runs(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["runs", "--site", "local", "--runs", "runs", *arguments])


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """One run that has ended unseen, with a lease, and one of an older ctrain."""
    (tmp_path / "in-use").mkdir()
    local = {**LOCAL, "facts": some_facts(lease_dir=str(tmp_path / "in-use"), cluster=LOCAL["facts"].cluster)}
    run = submitted(tmp_path / "runs/one", StandIn(), **local)
    Path(run.plan.image.lease).touch()
    write_ranks(run.path, 3)
    write_end(run.path, 3)
    record.save(run.record)
    old = submitted(tmp_path / "runs/old", StandIn(), **LOCAL)
    (old.path / "record.json").write_text(json.dumps({"schema": 1, "run": "old"}))
    return tmp_path


def test_no_runs(capsys: Out, tmp_path: Path) -> None:
    assert runs() == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path}/runs\n"


def test_runs_of_an_older_ctrain_hide_no_others(capsys: Out, monkeypatch: pytest.MonkeyPatch, two: Path) -> None:
    monkeypatch.setattr("ctrain_runtime.schedulers.process.name", lambda _: "process 7")
    monkeypatch.setattr("ctrain_runtime.schedulers.process.status", lambda _: GONE)
    assert runs("--json") == 0
    out, error = capsys.readouterr()
    assert [each["run"] for each in json.loads(out)["runs"]] == ["one"]
    assert error.startswith("old: unsupported record schema in ")
    assert list((two / "in-use").iterdir()) == []  # its lease has ended with it


def test_a_long_name_widens_its_own_row_alone(capsys: Out, monkeypatch: pytest.MonkeyPatch, two: Path) -> None:
    monkeypatch.setattr("ctrain_runtime.schedulers.process.name", lambda _: "process 7")
    monkeypatch.setattr("ctrain_runtime.schedulers.process.status", lambda _: GONE)
    long = submitted(two / f"runs/{'x' * 150}", StandIn(), **LOCAL)
    write_end(long.path, 3)
    assert runs() == 0
    by_name = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert len(by_name["one"]) < 120
    assert by_name["x" * 150].startswith(f"{'x' * 150}  failed (3)")


@pytest.mark.parametrize("verb", ["attach", "cancel"])
def test_a_run_that_is_not_there(verb: str, two: Path, capsys: Out) -> None:
    where = ("--site", "local", "--runs", "runs")
    assert main(RUNTIME_VERBS, [verb, "onee", *where]) == 71
    assert capsys.readouterr().err == f"ctrain: run 'onee' not found in {two}/runs. Did you mean 'one'?\n"
    assert main(RUNTIME_VERBS, [verb, "last", "--site", "local", "--runs", "nowhere"]) == 71
    assert "no runs in " in capsys.readouterr().err


def test_runs_are_refreshed_together(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    """Each question to the scheduler is answered only once three are asked: one by one, they would wait in vain."""
    monkeypatch.setattr(ownership, "TIMEOUT_SECONDS", 60.0)  # longer than the answer takes in the worst case
    for name in ("a", "b", "c"):
        run = submitted(tmp_path / "runs" / name, StandIn())
        attempt = dataclasses.replace(run.record.attempts[0], job_id=name)
        record.save(dataclasses.replace(run.record, attempts=(attempt,)))
    script = """\
#!/bin/bash
PATH=/usr/bin:/bin
mkdir -p {0}/asked && touch {0}/asked/$$
for ((i = 0; i < 150; i++)); do
  [ "$(ls {0}/asked | wc -l)" -lt 3 ] || {{ echo "JobId=${{!#}} JobName=${{!#}} JobState=RUNNING"; exit; }}
  sleep 0.05
done
echo "JobId=7 JobName=${{!#}} JobState=PENDING Reason=Alone"
"""
    write_program(programs / "scontrol", script.format(tmp_path))
    assert main(RUNTIME_VERBS, ["runs", "--site", "generic-slurm", "--runs", "runs"]) == 0
    states = [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert states == ["running"] * 3

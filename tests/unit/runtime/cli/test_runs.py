from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from ctrain_runtime import schedulers
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import parent_directories, record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Exit
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
    assert error.startswith("old: unsupported schema 1 in ")
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


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of two parent directories: one that trains, one that failed a day ago and one that completed 40 days ago."""
    scheduler = StandIn()
    runs = (("other/trains", 0, None), ("runs/fails", 1, 3), ("runs/done", 40, 0), ("third/done", 50, 0))
    for name, days, code in runs:
        run = submitted(tmp_path / name, scheduler)
        (run.path / "metrics.jsonl").write_text('{"step": 5, "steps": 9, "loss": 0.5, "images_per_second": 7}\n')
        moment = record.iso(time.time() - days * 86400 - 60)
        ending = Ending.FAILED if code else Ending.COMPLETED
        ended = None if code is None else Exit(code, "why", "program", ending)
        end = moment if ended else None
        record.save(dataclasses.replace(run.record, created=moment, start=end, end=end, exit=ended))
        os.utime(run.path / "plan.json", (time.time() - days * 86400,) * 2)
    parent_directories.remember(tmp_path / "other")
    monkeypatch.setenv("CTRAIN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(schedulers, "get", lambda _: scheduler)
    return tmp_path


def ctrain_runs(capsys: Out, *arguments: str) -> list[str]:
    """The first words of the lines of `ctrain runs`."""
    assert main(RUNTIME_VERBS, ["runs", "--site", "local", *arguments]) == 0
    return [line.split()[0].rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]


def test_runs_of_all_directories_with_what_they_have_measured(several: Path, capsys: Out) -> None:
    assert main(RUNTIME_VERBS, ["runs", "--site", "local"]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows == ["run", "trains", "fails", "done"]
    assert main(RUNTIME_VERBS, ["runs", "--site", "local", "--name", "train"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("  step 5/9, loss 0.500")
    assert ctrain_runs(capsys, "--runs", str(several / "other")) == ["run", "trains"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--since", "2d"), ["trains", "fails"]),
        (("--since", "12h"), ["trains"]),
        (("--state", "failed"), ["fails"]),
        (("--state", "completed", "--name", "don"), ["done"]),
    ],
)
def test_runs_are_selected(options: tuple[str, ...], names: list[str], several: Path, capsys: Out) -> None:
    assert several
    assert ctrain_runs(capsys, *options)[1:] == names


def test_none_is_selected(several: Path, capsys: Out) -> None:
    assert several
    assert main(RUNTIME_VERBS, ["runs", "--site", "local", "--state", "preempted"]) == 0
    assert capsys.readouterr().out == "no run matches\n"


def test_runs_of_one_name_are_shown_by_their_directories(several: Path, capsys: Out) -> None:
    parent_directories.remember(several / "third")
    assert main(RUNTIME_VERBS, ["runs", "--site", "local"]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == ["trains", "fails", f"{several}/runs/done", f"{several}/third/done"]


@pytest.mark.parametrize("age", ["30", "2 d", "", "-1d", "1:00", "unlimited", "9999999d"])
@pytest.mark.parametrize("words", [["--since"], ["gc", "--older-than"]])
def test_ages_that_are_none(age: str, words: list[str], several: Path, capsys: Out) -> None:
    code = main(RUNTIME_VERBS, ["runs", "--site", "local", *words[:-1], f"{words[-1]}={age}"])
    assert several
    if age or words != ["--since"]:
        assert (code, capsys.readouterr().err) == (
            64,
            f"ctrain: invalid age {age!r}. Write it as in 90m, 12h, 30d or 8w\n",
        )


def test_rm_lists_and_removes_with_yes_alone(several: Path, capsys: Out) -> None:
    words = ["runs", "--site", "local", "rm", "fails", "last"]
    assert main(RUNTIME_VERBS, words) == 71  # nothing is removed where one cannot be
    assert "trains cannot be removed: it has not ended" in capsys.readouterr().err
    for yes, *last in (((), "1 run (", "; confirm with --yes"), (("--yes",), "removed 1 run (", ")")):
        assert main(RUNTIME_VERBS, [*words[:-1], str(several / "runs/fails"), *yes]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith(f"{several}/runs/fails  failed (3)")
        assert lines[-1].startswith(last[0]) and lines[-1].endswith(last[1])
        assert (several / "runs/fails").exists() is (not yes)
    assert main(RUNTIME_VERBS, words[:-1]) == 71


def test_rm_takes_no_links(several: Path, capsys: Out) -> None:
    (several / "runs/link").symlink_to(several / "runs/done")
    assert main(RUNTIME_VERBS, ["runs", "--site", "local", "rm", "link", "--yes"]) == 71
    assert capsys.readouterr().err == "ctrain: link is a link. Name the run's own directory\n"
    assert (several / "runs/done").exists()


def test_gc_removes_what_ended_long_ago_and_keeps_checkpoints(several: Path, capsys: Out) -> None:
    assert ctrain_runs(capsys, "gc", "--older-than", "12h")[1:3] == ["fails", "done"]
    (several / "runs/done/checkpoint/step-1").touch()
    assert ctrain_runs(capsys, "gc") == ["nothing"]
    assert main(RUNTIME_VERBS, ["runs", "--site", "local", "--json", "gc", "--checkpoints", "--yes"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert ([run["run"] for run in data["runs"]], data["done"]) == (["done"], True)
    assert sorted(path.name for path in (several / "runs").iterdir()) == ["fails"]

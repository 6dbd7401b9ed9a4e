"""Sweeps on site local with the fake engine, from the submission to the table; on queues, what these are asked for."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import group
from samples import programs as fakes
from samples.run_requests import make_machine
from samples.runs import Bench, ended, wait_for

# Its loss is its lr; the one with seed 2 fails; each notes whether another runs.
PROGRAM = """\
set -eu
lr=$2 seed=$4
mkdir "busy" || echo "two at once" >>"overlaps"
[ ! -e "gate" ] || read -r _ <"gate"
echo "{\\"step\\": 1, \\"steps\\": 1, \\"loss\\": $lr}" >>"$CTRAIN_RUN_DIR/metrics.jsonl"
rmdir "busy"
[ "$seed" != 2 ] || exit 4
"""
WORDS = ("--sweep", "lr=0.5,0.25", "--sweep", "seed=1..2")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    (tmp_path / "program.sh").write_text(PROGRAM)
    yield bench
    for number in range(1, 5):
        bench.one = bench.runs / f"one-{number}"
        bench.end()


def submit(bench: Bench, *words: str, **variables: str) -> tuple[int, str, str]:
    command = ("--ranks-per-node", "1", "--launcher", "env", "--", "bash", "program.sh")
    return ended(bench.run(*words, *command, verb="submit", **variables))


def on(bench: Bench, verb: str, *words: str) -> tuple[int, str, str]:
    return ended(bench.attach(*words, verb=verb))


def record(bench: Bench, number: int) -> dict[str, Any]:
    data = json.loads((bench.runs / f"one-{number}/record.json").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def test_a_sweep_is_one_group_whose_runs_fail_alone_and_one_at_a_time(bench: Bench) -> None:
    code, out, error = submit(bench, *WORDS)
    assert (code, error) == (0, "")
    *_, sweep, last = out.splitlines()
    assert sweep == "sweep     one: 4 runs over lr, seed, 1 at a time"
    assert last == "submitted 4 runs; see: ctrain status one"
    code, out, _ = on(bench, "wait")
    assert code == 4
    assert len(out.splitlines()) == 4
    assert not (bench.folder / "overlaps").exists()
    assert [record(bench, number)["exit"]["code"] for number in range(1, 5)] == [0, 4, 0, 4]
    starts = [record(bench, number)["start"] for number in range(1, 5)]
    assert starts == sorted(starts)
    head, *rows, total, best = on(bench, "status")[1].splitlines()
    assert head.split() == ["run", "lr", "seed", "state", "elapsed", "last"]
    assert [row.split()[:4] for row in rows][:2] == [
        ["one-1", "0.5", "1", "completed"],
        ["one-2", "0.5", "2", "failed"],
    ]
    assert total == "4 runs: 2 completed, 2 failed (4)"
    assert best == "lowest loss: 0.250, of one-3 (lr=0.25 seed=1)"
    shown = json.loads(on(bench, "status", "--json")[1])
    assert (shown["group"], shown["at_once"]) == ("one", 1)
    assert shown["runs"][3]["parameters"] == {"lr": "0.25", "seed": "2"}
    assert shown["runs"][3]["exit_code"] == 4
    assert "one is a sweep of 4 runs. Name one, as in one-1" in on(bench, "logs")[2]
    code, _, error = submit(bench, *WORDS)
    assert (code, error) == (0, "")  # all are submitted already
    assert submit(bench, "--sweep", "lr=1", "--sweep", "seed=1")[2].startswith("ctrain: sweep one exists, with other")
    assert submit(bench)[2].startswith(f"ctrain: run {bench.runs}/one already exists")
    rm = ended(bench.ctrain("runs", "rm", "one", "--yes", "--site", "local", "--runs", str(bench.runs)))
    assert rm[0] == 0
    assert list(bench.runs.iterdir()) == []


def test_a_sweep_is_cancelled_at_once_whether_its_runs_run_or_wait(bench: Bench) -> None:
    os.mkfifo(bench.folder / "gate")
    assert submit(bench, *WORDS)[0] == 0
    wait_for(bench.folder / "busy")
    states = [run["state"] for run in json.loads(on(bench, "status", "--json")[1])["runs"]]
    assert states == ["running", "waiting", "waiting", "waiting"]
    where = ("--site", "local", "--runs", str(bench.runs))
    assert "waiting (for process " in ended(bench.ctrain("status", "one-2", *where))[1]
    code, out, error = on(bench, "cancel")
    assert (code, error) == (0, "")
    assert out.splitlines()[-1] == "4 runs: 4 cancelled"
    for number in range(2, 5):
        events = (bench.runs / f"one-{number}/events.jsonl").read_text()
        assert '"stage": "before"' not in events
        assert record(bench, number)["exit"]["ending"] == "cancelled"


def test_a_run_whose_predecessor_was_killed_starts(bench: Bench) -> None:
    os.mkfifo(bench.folder / "gate")
    assert submit(bench, "--sweep", "lr=0.5", "--sweep", "seed=1,3", "--at-once", "1")[0] == 0
    wait_for(bench.folder / "busy")
    bench.one = bench.runs / "one-1"
    bench.end()
    (bench.folder / "busy").rmdir()
    (bench.folder / "gate").unlink()
    assert on(bench, "wait")[0] == 137
    assert record(bench, 2)["exit"]["code"] == 0


def test_a_sweep_that_cannot_start_leaves_nothing(bench: Bench) -> None:
    for words, complaint in (
        (("--sweep", "lr=1..101"), "the sweep has 101 runs (101 of lr), more than 100"),
        (("--sweep", "lr=1", "--at-once", "0"), "--at-once must be a positive integer, not 0"),
        (("--at-once", "2"), "--at-once is for a sweep"),
        (("--sweep", "lr=1", "--data", "/none"), "cannot mount /none at /data: not found"),
    ):
        code, _, error = submit(bench, *words)
        assert code in (64, 71)
        assert complaint in error
    named_last = ("submit", "--site", "local", "--image", str(bench.image), "--runs", str(bench.runs), "--name", "last")
    code, _, error = ended(bench.ctrain(*named_last, "--sweep", "lr=1", "--", "true"))
    assert (code, error.partition(".")[0]) == (64, "ctrain: --name last: this word means the newest run")
    assert not bench.runs.exists() or list(bench.runs.iterdir()) == []


@pytest.fixture
def queue(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm, which takes two jobs and no more; ./job."""
    make_machine(programs, tmp_path)
    script = """\
#!/bin/bash
[[ $* != *--test-only* ]] || exit 0
n=$(<COUNT)
[ "$n" -lt "$(<LIMIT)" ] || { echo 'sbatch: error: Batch job submission failed: too many jobs' >&2; exit 1; }
echo $((n + 1)) >COUNT
echo $((n + 1))
"""
    names = {"COUNT": tmp_path / "count", "LIMIT": tmp_path / "limit"}
    for name, path in names.items():
        script = script.replace(name, str(path))
    fakes.write_program(programs / "sbatch", script)
    scontrol = (programs / "scontrol").read_text()
    failed = shlex.quote("JobId=7 JobState=FAILED Reason=None\n")
    assert failed in scontrol
    waiting = '"JobId=${!#} JobName=s-${!#} JobState=PENDING Reason=None"'
    fakes.write_program(programs / "scontrol", scontrol.replace(failed, waiting))
    names["COUNT"].write_text("0")
    names["LIMIT"].write_text("2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_was_submitted_is_never_lost_and_the_same_line_goes_on(
    queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "submit ./job --site generic-slurm --store store --name s --sweep lr=1,2,3 --at-once 1"
    line = text.split()
    assert main(RUNTIME_VERBS, line) == 72
    error = capsys.readouterr().err
    assert "submitted 2 of 3 runs, then: " in error
    assert "too many jobs" in error
    assert "the same line with --name s; cancel these: ctrain cancel s" in error
    known = group.find("s", queue / "ctrain-runs")
    assert known
    assert [member.job for member in known.runs] == ["job 1", "job 2", ""]
    (queue / "limit").write_text("9")
    assert main(RUNTIME_VERBS, line) == 0
    scripts = [(queue / f"ctrain-runs/s-{number}/job.sh").read_text() for number in (1, 2, 3)]
    assert "--dependency" not in scripts[0]
    assert "#SBATCH --dependency=afterany:1\n" in scripts[1]
    known = group.find("s", queue / "ctrain-runs")
    assert known
    assert [member.job for member in known.runs] == ["job 1", "job 2", "job 3"]


def test_signals_stop_a_submission_between_two_runs(bench: Bench) -> None:
    process = bench.run(*WORDS, "--ranks-per-node", "1", "--launcher", "env", "--", "bash", "program.sh", verb="submit")
    wait_for(bench.runs / "one-1/plan.json")
    process.send_signal(signal.SIGINT)
    code, _, error = ended(process)
    known = group.find("one", bench.runs)
    assert known
    assert code in (0, 130)
    assert (code == 0) == (len(known.submitted) == 4)
    assert code == 0 or f"stopped: {len(known.submitted)} of 4 runs are submitted" in error
    assert submit(bench, *WORDS)[0] == 0
    assert len(known.submitted) == 4
    assert on(bench, "wait")[0] == 4

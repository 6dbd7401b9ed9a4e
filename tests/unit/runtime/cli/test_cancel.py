from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ctrain_runtime.cli.follow import follow
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.run import interrupts, record, watch
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.pick_up import pick_up
from ctrain_runtime.run.submit import Run
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.slurm import submit
from samples.plans import LOCAL
from samples.programs import answer, write_program
from samples.runs import Bench, StandIn, ended, submitted, wait_for, write_end, write_ranks

Out = pytest.CaptureFixture[str]
RUNNING = "JobId=7 JobName=one JobState=RUNNING Reason=None\n"


@pytest.fixture
def run(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Job 7 of Slurm, which runs. An hour is over once scancel was tried twice."""
    tries = programs / "scancel.calls"

    def clock() -> float:
        is_late = tries.exists() and len(tries.read_text().splitlines()) > 1
        return time.monotonic() + 3600 * is_late

    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(watch, "CANCEL_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(interrupts, "DEBOUNCE_SECONDS", 0.05)
    answer(programs, "scontrol", RUNNING)
    return submitted(tmp_path / "runs/one", StandIn())


def watched() -> int:
    """The exit code of the `ctrain run` that has submitted the run, from there on."""
    with Interrupts() as interrupts:
        return follow(pick_up(Path("runs/one")), Terminal(sys.stdout), interrupts, as_json=False)


def ctrain(verb: str, *arguments: str) -> int:
    return main(RUNTIME_VERBS, [verb, "one", "--site", "generic-slurm", "--runs", "runs", *arguments])


@pytest.fixture
def pids(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scancel that never returns; the file with the number of each of its processes."""
    monkeypatch.setattr(submit, "CANCEL_TIMEOUT_SECONDS", 1.0)
    pids = programs / "scancel.calls"
    write_program(programs / "scancel", f"#!/bin/bash\necho $$ >>{pids}\nexec /bin/sleep 600\n")
    return pids


def assert_open(run: Run, pids: Path) -> None:
    """Nothing claims that the run was cancelled, and no scancel is left."""
    assert record.load(run.path) == run.record
    assert not (run.path / "cancelled").exists()
    assert not [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]


def test_a_scancel_that_hangs_is_an_error_and_the_run_stays_open(run: Run, pids: Path, capsys: Out) -> None:
    assert ctrain("cancel") == 72
    out, error = capsys.readouterr()
    problem = "cannot cancel job 7; it may still be running"
    assert error == f"ctrain: {problem}. Retry with: ctrain cancel {run.path}\n"
    assert out.splitlines().count(f"warning: {problem}: scancel timed out after 1 s; trying again") == 1
    assert len(pids.read_text().split()) > 1
    assert_open(run, pids)


@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_ctrl_c_twice_while_scancel_hangs(run: Run, programs: Path, pids: Path, name: str, capsys: Out) -> None:
    """Each time that ctrain asks for the state it gets a signal: before the cancellation, and after its first try."""
    write_program(programs / "scontrol", f"#!/bin/bash\nkill -{name} $PPID\nprintf '{RUNNING}'\n")
    problem = f"cannot cancel job 7; it may still be running. Retry with: ctrain cancel {run.path}"
    with pytest.raises(SchedulerError, match=f"^{problem}$"):
        watched()
    assert "is being cancelled" not in "".join(capsys.readouterr())
    assert_open(run, pids)


def test_ctrl_c_twice_after_scancel_has_answered(run: Run, programs: Path, capsys: Out) -> None:
    write_program(programs / "scontrol", f"#!/bin/bash\n/bin/sleep 0.1\nkill -INT $PPID\nprintf '{RUNNING}'\n")
    answer(programs, "scancel")
    assert watched() == 130
    error = capsys.readouterr().err
    assert error == f"job 7 is being cancelled; see its end with: ctrain attach {run.path}\n"
    assert record.load(run.path) == run.record
    assert (run.path / "cancelled").exists()


def test_a_scancel_that_refuses(run: Run, programs: Path, capsys: Out) -> None:
    calls = answer(programs, "scancel", error="scancel: error: Kill job error on job id 7: Access denied\n", code=1)
    assert ctrain("cancel") == 72
    out, _ = capsys.readouterr()
    warnings = [line for line in out.splitlines() if line.startswith("warning: ")]
    (warning,) = warnings
    assert warning.endswith(": Kill job error on job id 7: Access denied; trying again")
    assert len(calls.read_text().splitlines()) > 1
    assert record.load(run.path).exit is None


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_that_has_ended_is_concluded_not_cancelled(run: Run, programs: Path, code: int, capsys: Out) -> None:
    calls = answer(programs, "scancel")
    write_ranks(run.path, *[code] * run.plan.size.world_size)
    write_end(run.path, code)
    answer(programs, "scontrol", "JobId=7 JobName=one JobState=COMPLETED Reason=None\n")
    assert ctrain("cancel") == 0
    concluded = record.load(run.path).exit
    assert concluded and (concluded.code, concluded.by) == (code, "program")
    assert capsys.readouterr().out == f"one has already ended: {concluded.reason}\n"
    assert not calls.exists()
    assert not (run.path / "cancelled").exists()


def test_a_run_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setattr(watch, "CANCEL_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(process, "ANSWER_SECONDS", 0.1)
    run = submitted(tmp_path / "runs/one", StandIn(), **LOCAL)
    attempt = dataclasses.replace(run.record.attempts[0], job_id="elsewhere:7:1")
    record.save(dataclasses.replace(run.record, attempts=(attempt,)))
    assert ctrain("cancel") == 72
    assert "cannot cancel process 7 of elsewhere: no answer from elsewhere; trying again" in capsys.readouterr().out
    assert record.load(run.path).exit is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("two",), "unrecognized arguments: two"),
        (("--json",), "unrecognized arguments: --json"),
        (("--", "x"), "ctrain cancel takes no arguments after --"),
    ],
)
@pytest.mark.usefixtures("run")
def test_mistakes_cancel_nothing(programs: Path, arguments: tuple[str, ...], complaint: str, capsys: Out) -> None:
    calls = answer(programs, "scancel")
    assert ctrain("cancel", *arguments) == 64
    assert capsys.readouterr().err.startswith(f"ctrain: {complaint}")
    assert not calls.exists()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "toy")
    yield bench
    bench.end()


@pytest.mark.parametrize("streams", ["", ">&-", ">/dev/full", "<&- >&- 2>&-"])
def test_printing_does_not_decide_over_a_cancellation(bench: Bench, streams: str) -> None:
    program = 'touch "$CTRAIN_RUN_DIR/up"; exec sleep 600'
    assert ended(bench.run("--launcher", "env", "--", "bash", "-c", program, verb="submit"))[0] == 0
    wait_for(bench.one / "up")
    command = bench.argv("cancel", "last", "--site", bench.site, "--runs", str(bench.runs))
    script = ["bash", "-c", f'"$@" {streams}', "bash", *command]
    done = subprocess.run(
        script, cwd=bench.folder, env=bench.environment, timeout=60, check=False, stdout=subprocess.DEVNULL
    )
    assert done.returncode == 0
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert not bench.orphans()


@pytest.mark.whole_run
def test_a_run_that_a_process_of_another_host_started(tmp_path: Path) -> None:
    """Its job.sh is asked in writing; here the record names another host."""
    here = Bench(tmp_path)
    try:
        program = 'trap "sleep 1; echo saved; exit" TERM; touch "$CTRAIN_RUN_DIR/up"; while :; do sleep 0.1; done'
        assert ended(here.run("--launcher", "env", "--", "bash", "-c", program, verb="submit"))[0] == 0
        wait_for(here.one / "up")
        record_file = here.one / "record.json"
        record_file.write_text(record_file.read_text().replace(f'"{socket.gethostname()}:', '"elsewhere:'))
        code, out, error = ended(here.attach(verb="cancel"))
        assert (code, error) == (0, ""), out
        assert here.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
        assert here.log(0).endswith("saved\n")
        assert not here.orphans()
    finally:
        here.end()


def test_two_that_cancel_at_once(bench: Bench) -> None:
    assert ended(bench.run("--launcher", "env", "--", "sleep", "600", verb="submit"))[0] == 0
    results = [ended(cancel) for cancel in [bench.attach(verb="cancel") for _ in range(3)]]
    assert [(code, error) for code, _, error in results] == [(0, "")] * 3
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert not bench.orphans()

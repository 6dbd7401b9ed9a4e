from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import record
from ctrain_runtime.run.ending import Ending
from samples.runs import Bench, ended, wait_for

ENV = ("--launcher", "env")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "toy")
    yield bench
    bench.end()


def test_it_returns_while_the_job_runs(bench: Bench) -> None:
    go = bench.folder / "go"
    program = ("bash", "-c", f"while ! [ -e {go} ]; do sleep 0.05; done; exit 3")
    code, out, error = ended(bench.run(*ENV, "--", *program, verb="submit"))
    assert (code, error) == (0, "")
    assert out.splitlines()[0] == "site      toy (requested)"
    assert bench.record()["exit"] is None
    go.touch()
    assert ended(bench.attach())[0] == 3


def test_the_line_to_type_next_works(bench: Bench) -> None:
    """A name means a run in the site's own directory, so with --runs it is the run directory."""
    words = [word for word in bench.run_words("submit") if word not in ("--runs", str(bench.runs))]
    runs = bench.folder / "runs-of-the-shell"
    code, out, _ = ended(bench.ctrain(*words, *ENV, "--", "true", CTRAIN_RUNS=str(runs)))
    assert (code, out.splitlines()[-1]) == (0, "submitted as toy 1; watch it with: ctrain attach one")
    attach = out.splitlines()[-1].rpartition("ctrain ")[2].split()
    assert ended(bench.ctrain(*attach, CTRAIN_RUNS=str(runs)))[0] == 0
    code, out, _ = ended(bench.run(*ENV, "--", "true", verb="submit"))
    attach = out.splitlines()[-1].rpartition("ctrain ")[2].split()
    assert attach == ["attach", str(bench.one)]
    assert ended(bench.ctrain(*attach))[0] == 0


def test_json_is_the_record_alone(bench: Bench) -> None:
    code, out, error = ended(bench.run("--json", *ENV, "--", "sleep", "60", verb="submit"))
    assert (code, error) == (0, "")
    assert json.loads(out) == bench.record()
    assert json.loads(out)["exit"] is None


@pytest.mark.parametrize("streams", [">&-", ">/dev/full", ">/dev/full 2>&1", "<&- >&- 2>&-"])
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_output_that_cannot_be_written_loses_no_job(bench: Bench, streams: str, option: list[str]) -> None:
    command = bench.argv(*bench.run_words("submit"), *option, *ENV, "--", "true")
    script = ["bash", "-c", f'"$@" {streams}', "bash", *command]
    done = subprocess.run(script, cwd=bench.folder, env=bench.environment, timeout=60, check=False)
    assert done.returncode == 0
    assert bench.record()["attempts"][0]["name"] == "toy 1"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_submission_cancels_the_job(bench: Bench, number: signal.Signals) -> None:
    submit = bench.run(*ENV, "--scheduler-option=--slow", "--", "sleep", "60", verb="submit")
    wait_for(bench.folder / "toy/1.slow")
    submit.send_signal(number)
    (bench.folder / "toy/1.go").touch()
    code, out, error = ended(submit)
    assert (code, error) == (130, "")
    assert "cancelling toy 1 ..." in out
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert not bench.orphans()


def test_a_terminal_that_is_closed_during_the_submission_leaves_the_job(bench: Bench) -> None:
    submit = bench.run(*ENV, "--scheduler-option=--slow", "--", "true", verb="submit")
    wait_for(bench.folder / "toy/1.slow")
    submit.send_signal(signal.SIGHUP)
    (bench.folder / "toy/1.go").touch()
    assert ended(submit)[0] == 0
    assert ended(bench.attach())[0] == 0
    assert bench.record()["exit"]["reason"] == "completed"


def test_a_job_that_is_rejected(bench: Bench) -> None:
    code, out, error = ended(bench.run(*ENV, "--scheduler-option=--refuse", "--", "true", verb="submit"))
    assert (code, out, error) == (72, "", "ctrain: the toy rejected the job. Leave out --refuse\n")
    assert record.load(bench.one).exit == record.Exit(72, "the toy rejected the job", "ctrain", Ending.NEVER_STARTED)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "no job or command given"),
        (("--dry-run", "--", "true"), "unrecognized arguments: --dry-run"),
        (("--wait", "--", "true"), "unrecognized arguments: --wait"),
        (("--nodes", "x", "--", "true"), "argument --nodes: invalid int value: 'x'"),
        (("true.sh",), "'true.sh' is a program, not a job. Put the command after --: ctrain submit -- bash true.sh"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["submit", *arguments]) == 64
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"ctrain: {complaint}")
    assert list(Path().iterdir()) == []

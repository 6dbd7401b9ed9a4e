from __future__ import annotations

import dataclasses
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.run import record
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.record import Exit
from ctrain_runtime.run.submit import Run
from samples.plans import LOCAL
from samples.runs import Bench, StandIn, ended, submitted, wait_for, write_end, write_ranks

Out = pytest.CaptureFixture[str]
NO_PROCESS = 1 << 22  # above the largest number of a process (proc(5), pid_max)
WHERE = ("--site", "local", "--runs", "runs")


def attach(*arguments: str) -> int:
    return main(RUNTIME_VERBS, ["attach", *WHERE, *arguments])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that has failed with code 3, which nobody has seen."""
    run = submitted(tmp_path / "runs/one", StandIn(), **LOCAL)
    attempt = dataclasses.replace(run.record.attempts[0], job_id=f"{socket.gethostname()}:{NO_PROCESS}:1")
    run = dataclasses.replace(run, record=dataclasses.replace(run.record, attempts=(attempt,)))
    record.save(run.record)
    write_ranks(run.path, 3)
    (run.path / "logs/rank0.log").write_text("no images\n")
    write_end(run.path, 3)
    return run


@pytest.mark.parametrize("reference", ["one", "last", "runs/one", "./runs/one/", "runs/../runs/one"])
def test_a_run_by_name_last_or_directory(run: Run, reference: str, capsys: Out) -> None:
    assert attach(reference) == 3
    assert capsys.readouterr().out.splitlines() == [
        "rank 0 on gpu00 failed first: exit code 3",
        "  | no images",
        f"its log: {run.path}/logs/rank0.log",
        f"run directory: {run.path}",
    ]


def test_the_current_directory_is_a_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path)
    assert main(RUNTIME_VERBS, ["attach", "."]) == 3


def test_the_first_to_look_concludes_the_others_show_the_same(run: Run, capsys: Out) -> None:
    assert attach("--json", "one") == 3
    first = json.loads(capsys.readouterr().out)
    assert first["exit"] == {
        "code": 3,
        "reason": "rank 0 on gpu00 failed first: exit code 3",
        "by": "program",
        "ending": "failed",
    }
    assert attach("one", "--json") == 3
    assert json.loads(capsys.readouterr().out) == first == json.loads((run.path / "record.json").read_text())


@pytest.mark.parametrize(
    "ended",
    [
        Exit(0, "completed", "program", Ending.COMPLETED),
        Exit(130, "cancelled", "user", Ending.CANCELLED),
        Exit(71, "x", "ctrain", Ending.REFUSED),
    ],
)
def test_the_exit_code_is_that_of_the_run(run: Run, ended: Exit) -> None:
    record.save(dataclasses.replace(run.record, exit=ended))
    assert attach("one") == ended.code


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ((), 64, "the following arguments are required: RUN. See: ctrain attach --help"),
        (("one", "two"), 64, "unrecognized arguments: two"),
        (("one", "--", "x"), 64, "ctrain attach takes no arguments after --"),
        (("one", "--jsno"), 64, "unrecognized arguments: --jsno. Did you mean '--json'?"),
        (("",), 71, "run '' not found in "),
        (("..",), 71, "run '..' not found in "),
        (("onee",), 71, "run 'onee' not found in "),
        (("/",), 71, "run '/' not found in "),
        (("one\n",), 71, "run 'one\\n' not found in "),
        (("x" * 300,), 71, "run 'xxx"),
        (("\udcff",), 71, "run '\\udcff' not found in "),
        (("--runs", "one", "last"), 71, "no runs in "),
        (("--site", "nowhere", "one"), 67, "unknown site 'nowhere'"),
    ],
)
def test_what_is_no_run(run: Run, arguments: tuple[str, ...], code: int, complaint: str, capsys: Out) -> None:
    assert attach(*arguments) == code
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"ctrain: {complaint}")
    assert record.load(run.path).exit is None


@pytest.mark.parametrize("name", ["plan.json", "record.json"])
@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "{}", '{"schema": 99}'])
def test_a_damaged_run_is_one_line(run: Run, name: str, text: str, capsys: Out) -> None:
    (run.path / name).write_text(text)
    assert attach("one") == 66
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert str(run.path / name) in error


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "toy")
    yield bench
    bench.end()


@pytest.mark.parametrize("streams", [">&-", ">/dev/full", "<&- >&- 2>&-"])
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_the_exit_code_does_not_depend_on_the_output(bench: Bench, streams: str, option: list[str]) -> None:
    assert ended(bench.run("--launcher", "env", "--", "bash", "-c", "sleep 0.5; exit 4", verb="submit"))[0] == 0
    command = bench.argv("attach", "one", *option, "--site", bench.site, "--runs", str(bench.runs))
    script = ["bash", "-c", f'"$@" {streams}', "bash", *command]
    done = subprocess.run(script, cwd=bench.folder, env=bench.environment, timeout=60, check=False)
    assert done.returncode == 4
    assert bench.record()["exit"]["code"] == 4


def test_several_can_watch_one_run(bench: Bench) -> None:
    go = bench.folder / "go"
    program = f"while ! [ -e {go} ]; do sleep 0.05; done; echo seen; exit 5"
    assert ended(bench.run("--launcher", "env", "--", "bash", "-c", program, verb="submit"))[0] == 0
    watchers = [bench.attach() for _ in range(3)]
    for watcher in watchers:
        assert watcher.stdout and "toy 1 started\n" in iter(watcher.stdout.readline, "")
    go.touch()
    results = [ended(watcher) for watcher in watchers]
    assert [(code, "seen" in out.splitlines(), error) for code, out, error in results] == [(5, True, "")] * 3
    assert bench.record()["exit"]["by"] == "program"


@pytest.mark.whole_run
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_run_which_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    """It begins with the state and the last lines; cancel shows no output again."""
    bench = Bench(tmp_path)
    go = bench.folder / "go"
    program = f"seq -f 'line %g' 30; while ! [ -e {go} ]; do sleep 0.05; done; exit 3"
    try:
        assert ended(bench.run("--launcher", "env", "--", "bash", "-c", program, verb="submit"))[0] == 0
        wait_for(lambda: (bench.one / "logs/rank0.log").exists() and "line 30" in bench.log(0))
        attach = bench.attach()
        assert attach.stdout
        lines = [attach.stdout.readline().rstrip()]
        while lines[-1] != "line 30":
            lines.append(attach.stdout.readline().rstrip())
        assert lines[1].startswith("state     running for ")
        assert [line for line in lines if line.startswith("line")] == [f"line {number}" for number in range(11, 31)]
        attach.send_signal(number)
        code, _, error = ended(attach)
        assert (code, error) == (129, "one goes on; cancel it with: ctrain cancel one\n")
        assert bench.record()["exit"] is None and not (bench.one / "cancelled").exists()
        code, out, _ = ended(bench.attach(verb="cancel"))
        assert (code, "line" in out) == (0, False)
    finally:
        go.touch()
        bench.end()

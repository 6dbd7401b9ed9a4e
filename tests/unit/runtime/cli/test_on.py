"""Verbs on a login node, from the user's own machine: two ctrains, two homes, and a stand-in for ssh."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.login_node import HOST, LoginNode
from samples.programs import write_program
from samples.runs import Bench, ended, wait_for


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "toy")
    yield bench
    bench.end()


@pytest.fixture
def login(bench: Bench) -> LoginNode:
    return LoginNode(bench)


def copies_of_code(login: LoginNode) -> list[Path]:
    return [path for path in (login.bench.runs / ".code").iterdir() if path.is_dir()]


def test_a_directory_job_with_its_code(login: LoginNode) -> None:
    folder = login.job('echo "$PWD: $(cat words.txt)"; exit 3')
    (folder / "words.txt").write_text("it's here")
    (folder / ".env").write_text("SECRET=1")
    options = (*login.words(), "--name", "one", "--env", 'QUOTED=a "b" $HOME *')
    code, out, error = ended(login.ctrain("run", "./my train", *options))
    assert code == 3, out + error
    assert "site      toy (requested)" in out
    assert error.startswith(f"on        {HOST}; lines to type here need --on {HOST}\ncode      {folder} (3 files, ")
    assert login.bench.log(0).endswith("it's here\n")
    plan = json.loads((login.bench.one / "plan.json").read_text())["plan"]
    assert plan["environment"]["variables"]["QUOTED"] == 'a "b" $HOME *'
    (place,) = copies_of_code(login)
    assert sorted(path.name for path in (place / "my train").iterdir()) == ["job.yaml", "train.sh", "words.txt"]
    assert not (login.state / "master").exists()


def test_code_is_copied_once_and_an_edit_makes_another_copy(login: LoginNode) -> None:
    folder = login.job("true")
    for text in ("true", "true", "true # edited"):
        (folder / "train.sh").write_text(text)
        code, out, error = ended(login.ctrain("run", "./my train", *login.words()))
        assert code == 0, out + error
    assert len(copies_of_code(login)) == 2


def test_copies_of_code_go_with_the_runs_that_are_from_them(login: LoginNode) -> None:
    folder = login.job("true")
    for name in ("one", "two"):
        (folder / "train.sh").write_text(f"true # {name}")
        code, out, error = ended(login.ctrain("run", "./my train", *login.words(), "--name", name))
        assert code == 0, out + error
    for copy in copies_of_code(login):
        os.utime(copy, (0, 0))
    code, out, error = ended(login.ctrain("runs", "rm", "one", *login.words()))
    assert (code, out.splitlines()[-1].partition(" (")[0]) == (0, "1 run, 1 of code"), error
    code, out, error = ended(login.ctrain("runs", "rm", "one", "--yes", *login.words()))
    assert (code, out.splitlines()[-1].partition(" (")[0]) == (0, "removed 1 run, 1 of code"), error
    (left,) = copies_of_code(login)
    assert (left / "my train/train.sh").read_text() == "true # two"


def test_a_command_runs_in_a_copy_of_the_current_directory(login: LoginNode) -> None:
    (login.laptop / "project").mkdir()
    (login.laptop / "project/train.sh").write_text('echo "$1"')
    options = (*login.words(), "--name", "one", "--image", str(login.bench.image), "--launcher", "env")
    code, out, error = ended(login.ctrain("run", *options, "--", "bash", "train.sh", "a  b", cwd="project"))
    assert (code, login.bench.log(0)) == (0, "a  b\n"), out + error


def test_ctrl_c_cancels_a_run_and_leaves_an_attached_one(login: LoginNode) -> None:
    go = login.bench.folder / "started"
    login.job(f"touch {go}; exec sleep 600")
    run = login.ctrain("run", "./my train", *login.words(), "--name", "one")
    wait_for(go)
    attach = login.ctrain("attach", "one", *login.words())
    assert attach.stdout
    assert attach.stdout.readline().startswith("run ")
    attach.send_signal(signal.SIGINT)
    code, _, error = ended(attach)
    assert (code, error) == (129, "one goes on; cancel it with: ctrain cancel one\n")
    code, out, error = ended(login.ctrain("fetch", "one", *login.words(), "--to", "my results"))
    assert (code, out.splitlines()[-1]) == (0, "it has not ended; the same line later fetches the rest"), error
    run.send_signal(signal.SIGINT)
    assert ended(run)[0] == 130
    assert login.bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_closed_terminal_and_a_killed_ctrain_leave_the_run(login: LoginNode, number: signal.Signals) -> None:
    started, go = login.bench.folder / "started", login.bench.folder / "go"
    login.job(f"touch {started}; while ! [ -e {go} ]; do sleep 0.05; done")
    run = login.ctrain("run", "./my train", *login.words(), "--name", "one")
    wait_for(started)
    run.send_signal(number)
    assert ended(run)[0] == (129 if number == signal.SIGHUP else -9)
    assert login.bench.record()["exit"] is None
    go.touch()
    assert ended(login.ctrain("wait", "one", *login.words()))[0] == 0
    assert login.bench.ending()["ending"] == "completed"


def test_a_lost_connection_leaves_the_run(login: LoginNode) -> None:
    started, go = login.bench.folder / "started", login.bench.folder / "go"
    login.job(f"touch {started}; while ! [ -e {go} ]; do sleep 0.05; done")
    run = login.ctrain("run", "./my train", *login.words(), "--name", "one")
    wait_for(started)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGUSR1)
    code, _, error = ended(run)
    assert code == 87
    hint = f"A run that was submitted goes on; watch it with: ctrain attach last --on {HOST}"
    assert error.endswith(f"ctrain: connection to {HOST} lost. {hint}\n")
    go.touch()
    assert ended(login.ctrain("wait", "one", *login.words()))[0] == 0
    assert login.bench.ending()["ending"] == "completed"


def test_a_sweep_is_submitted_shown_and_fetched(login: LoginNode) -> None:
    login.job('echo "{\\"step\\": 1, \\"loss\\": $2}" >"$CTRAIN_RUN_DIR/metrics.jsonl"')
    options = (*login.words(), "--name", "s", "--sweep", "lr=1,2")
    code, out, error = ended(login.ctrain("submit", "./my train", *options))
    assert code == 0, out + error
    assert ended(login.ctrain("wait", "s", *login.words()))[0] == 0
    code, out, error = ended(login.ctrain("fetch", "s", *login.words(), "--to", "results"))
    assert code == 0, out + error
    assert out.endswith("\nlook at it: ctrain report results/s-2\n")
    assert (login.laptop / "results/s-2/metrics.jsonl").read_text() == '{"step": 1, "loss": 2}\n'
    code, out, error = ended(login.ctrain("report", "results/s-1", "results/s-2", "--text"))
    assert code == 0, out + error
    assert "completed" in out


def test_runs_there_are_reported_compared_and_exported_here(login: LoginNode) -> None:
    login.job('echo "{\\"step\\": 1, \\"loss\\": $2}" >"$CTRAIN_RUN_DIR/metrics.jsonl"')
    for name in ("one", "two"):
        code, out, error = ended(login.ctrain("run", "./my train", *login.words(), "--name", name, "--set", "lr=1"))
        assert code == 0, out + error
    code, out, error = ended(login.ctrain("report", "one", "two", *login.words()))
    assert (code, out) == (0, f"report: {login.laptop}/one-compared.html\n"), error
    assert "<svg" in (login.laptop / "one-compared.html").read_text()
    code, out, error = ended(login.ctrain("report", "one", "-o", "my.html", *login.words()))
    assert (code, (login.laptop / "my.html").exists()) == (0, True), error
    code, out, error = ended(login.ctrain("report", "one", "--text", *login.words()))
    assert (code, "completed" in out) == (0, True), error
    code, out, error = ended(login.ctrain("compare", "one", "two", *login.words()))
    assert (code, "one" in out) == (0, True), error
    code, out, error = ended(login.ctrain("export", "one", "--to", "tensorboard", "events", *login.words()))
    assert (code, out) == (0, "exported: one -> events/one (1 value)\n"), error
    assert len(list((login.laptop / "events/one").iterdir())) == 1
    code, out, error = ended(login.ctrain("report", "gone", *login.words()))
    assert (code, out) == (71, "")
    assert error.startswith(f"ctrain: {HOST}: ")
    login.state.joinpath("calls").unlink()
    code, out, error = ended(login.ctrain("report", "gone", "--runs", str(login.bench.runs), CTRAIN_SITE="local"))
    assert (code, login.state.joinpath("calls").exists()) == (71, False)


def test_a_site_with_a_login_stands_for_on(login: LoginNode) -> None:
    sites = Path(login.environment["HOME"], ".config/ctrain/sites")
    sites.mkdir(parents=True)
    (sites / "far.yaml").write_text(f"login: {HOST}\n")
    code, out, error = ended(login.ctrain("runs", "--runs", str(login.bench.runs), CTRAIN_SITE="far"))
    assert (code, out) == (0, f"no runs in {login.bench.runs}\n"), error
    code, out, error = ended(login.ctrain("runs", "--site", "far", "--runs", str(login.bench.runs)))
    assert (code, out) == (0, f"no runs in {login.bench.runs}\n"), error
    assert {line.partition(":")[0] for line in (login.state / "calls").read_text().splitlines()} == {HOST}


def test_errors_of_the_ctrain_there_keep_their_code(login: LoginNode) -> None:
    code, out, error = ended(login.ctrain("fetch", "gone", *login.words()))
    assert (code, out) == (71, "")
    assert error == f"ctrain: {HOST}: run 'gone' not found in {login.bench.runs}. List runs with: ctrain runs\n"
    code, out, error = ended(login.ctrain("status", "gone", *login.words()))
    assert (code, out) == (71, "")
    assert error == f"ctrain: run 'gone' not found in {login.bench.runs}. List runs with: ctrain runs\n"


OTHER_PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(9, 15)))
REFUSALS = [
    ("ssh: Could not resolve hostname login: Name or service not known", "host unknown. Name a host, or one of"),
    ("kim@login: Permission denied (publickey,password).", "authentication refused. Log in by hand first: ssh"),
    ("Host key verification failed.", "its key is not the known one, or is not known yet. Compare it: ssh"),
]


@pytest.mark.parametrize(("line", "complaint"), REFUSALS)
def test_a_connection_that_is_refused(login: LoginNode, line: str, complaint: str) -> None:
    (login.state / "refusal").write_text(f"some banner\n{line}\n")
    code, out, error = ended(login.ctrain("status", *login.words()))
    assert (code, out) == (87, "")
    assert error.startswith(f"ctrain: {HOST}: {complaint}")
    assert error.count("\n") == 1


def test_a_host_that_cannot_be_reached(login: LoginNode) -> None:
    (login.state / "refusal").write_text("ssh: connect to host login port 22: Connection refused\n")
    line = "ssh: connect to host login port 22: Connection refused"
    assert ended(login.ctrain("status", *login.words())) == (
        87,
        "",
        f"ctrain: cannot reach {HOST}: {line}. Try by hand: ssh {HOST}\n",
    )


@pytest.mark.parametrize(
    ("program", "expected", "complaint"),
    [
        (
            "echo \"ctrain: unknown command '__serve'. Known: run\" >&2; exit 64",
            87,
            f"the ctrain of {HOST} is too old for --on",
        ),
        ("exit 0", 87, f"{HOST}: exit code 0, without an answer"),
        ("echo 'ctrain: no space left for /home/kim' >&2; exit 75", 75, f"{HOST}: no space left for /home/kim\n"),
        ("echo Traceback >&2; exit 1", 87, f"{HOST}: Traceback\n"),
        ("echo 'bash: no such python' >&2; exit 127", 87, f"{HOST}: bash: no such python\n"),
    ],
)
def test_another_ctrain_there(login: LoginNode, program: str, expected: int, complaint: str) -> None:
    there = login.bench.folder / "ctrain/bin/ctrain"
    there.write_text(f"#!/bin/bash\n{program}\n")
    code, _, error = ended(login.ctrain("status", *login.words()))
    assert code == expected
    assert error.startswith(f"ctrain: {complaint}")


def without_ctrain(login: LoginNode, **programs: str) -> Path:
    """The login node without ctrain, with these programs on its PATH; where a copy of ctrain would be."""
    (login.bench.folder / "ctrain/bin/ctrain").unlink()
    for name, script in programs.items():
        write_program(login.bench.folder / "ctrain/bin" / name, f"#!/bin/bash\n{script}\n")
    (login.bench.folder / ".bash_profile").write_text('PATH="$HOME/ctrain/bin:$PATH"\necho Welcome\n')
    return login.bench.folder / ".local/share/ctrain"


def test_a_login_node_without_ctrain_gets_this_one_once(login: LoginNode) -> None:
    place = without_ctrain(login, python3=f'exec {shlex.quote(sys.executable)} "$@"')
    for time in ("first", "second"):
        code, out, error = ended(login.ctrain("runs", "--on", HOST, "--runs", str(login.bench.runs)))
        assert (code, out.splitlines()[-1]) == (0, f"no runs in {login.bench.runs}"), error
        (copy,) = place.iterdir()
        note = f"note      no ctrain on {HOST}: this one is now there, in ~/.local/share/ctrain/{copy.name}\n"
        assert error == (note if time == "first" else "")


@pytest.mark.parametrize(
    ("programs", "expected", "complaint"),
    [
        (dict.fromkeys(OTHER_PYTHONS, "exit 1"), 87, "no Python 3.9 or newer on PATH of login shells. Load one in"),
        ({"tar": "echo 'tar: a: No space left on device' >&2; exit 2"}, 75, "cannot unpack to "),
    ],
)
def test_a_login_node_that_cannot_have_this_ctrain(
    login: LoginNode, programs: dict[str, str], expected: int, complaint: str
) -> None:
    place = without_ctrain(login, **programs)
    code, out, error = ended(login.ctrain("runs", "--on", HOST))
    assert (code, out, list(place.iterdir())) == (expected, "", [])
    assert error.startswith(f"ctrain: {HOST}: {complaint}")
    assert error.count("\n") == 1


def test_what_a_login_shell_prints_is_no_answer(login: LoginNode) -> None:
    (login.bench.folder / ".bash_profile").write_text("printf 'Welcome to the cluster'\n")
    code, out, error = ended(login.ctrain("fetch", "gone", *login.words()))
    assert (code, out) == (71, ""), error


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("status", "--on", "-oProxyCommand=x"), 64, "argument --on: expected one argument"),
        (("status", "--on=-oProxyCommand=x"), 64, "not a login node: '-oProxyCommand=x'. Write HOST or USER@HOST"),
        (("status", "--on", "a b"), 64, "not a login node: 'a b'"),
        (("run", "--on", "kim@login", "./gone"), 65, "gone/job.yaml not found"),
        (("fetch", "last"), 64, "no login node given. Pass --on HOST"),
        (("status", "--on", "kim@login"), 87, "ssh not found on PATH"),
    ],
)
@pytest.mark.usefixtures("programs")
def test_mistakes(words: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, words) == code
    assert complaint in capsys.readouterr().err

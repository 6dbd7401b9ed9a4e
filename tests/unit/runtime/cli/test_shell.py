"""`ctrain shell` on a pseudo-terminal, with the fake engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples import pbs_stand_in
from samples.runs import Bench, ended, wait_for
from samples.terminal import Terminal

PROMPT = "]# " if os.geteuid() == 0 else "]$ "
Start = Callable[..., Terminal]


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, getattr(request, "param", "local"))


def words(bench: Bench, *arguments: str) -> tuple[str, ...]:
    where = ("--site", bench.site, "--runs", str(bench.runs), "--name", "one")
    return "shell", str(bench.image), *where, *arguments


@pytest.fixture
def start(bench: Bench) -> Iterator[Start]:
    """start(ARGUMENTS...): `ctrain shell` on a terminal, with its header taken off."""
    terminals: list[Terminal] = []

    def start(*arguments: str, **variables: str) -> Terminal:
        argv, env = bench.argv(*words(bench, *arguments)), {**bench.environment, "TERM": "dumb", **variables}
        terminals.append(Terminal(argv, bench.folder, env))
        terminals[-1].wait_for(f"run       one  ->  {bench.one}\r\n")
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()
    bench.end()


def test_it_is_a_rank_with_a_terminal_and_leaves_nothing(bench: Bench, start: Start) -> None:
    terminal = start("--env", "COLOUR=dark blue")
    terminal.wait_for(PROMPT)
    terminal.type("echo $RANK/$WORLD_SIZE $COLOUR $MASTER_ADDR $CTRAIN_RUN_DIR; pwd; sleep 1000 &\r")
    terminal.wait_for(f"0/1 dark blue 127.0.0.1 {bench.one}\r\n{bench.folder}\r\n")
    wait_for(bench.processes)
    terminal.type("exit 7\r")
    assert terminal.end() == 7
    assert list(bench.runs.iterdir()) == []
    assert not bench.orphans()


@pytest.mark.parametrize("bench", ["pbs"], indirect=True)
def test_in_an_allocation_of_pbs(bench: Bench, start: Start) -> None:
    outer = ("--name", "outer", "--", "bash", "-c", 'touch "$CTRAIN_RUN_DIR/up"; sleep 1000')
    size = ("--gpus-per-node", "0", "--ranks-per-node", "1", "--launcher", "env")
    assert ended(bench.run(*size, *outer, verb="submit"))[0] == 0
    wait_for(bench.runs / "outer/up")
    terminal = start("--gpus-per-node", "0", **pbs_stand_in.environment(bench.folder / "pbs/1"))
    terminal.wait_for(PROMPT)
    terminal.type("echo $RANK/$WORLD_SIZE in $PBS_JOBID\r")
    terminal.wait_for("0/1 in 1.login01\r\n")
    terminal.type("exit 7\r")
    assert terminal.end() == 7
    assert not bench.one.exists()
    assert not (bench.folder / "pbs/2").exists(), "it is no job of its own"
    assert ended(bench.attach(run="outer", verb="cancel"))[0] == 0


def test_keys_are_for_the_program_in_front(start: Start) -> None:
    terminal = start()
    terminal.wait_for(PROMPT)
    for keys, code in (("\x03", "130"), ("\x1c", "131"), ("\x1a", "148")):  # Ctrl-C, Ctrl-\ and Ctrl-Z
        terminal.type("sh -c 'echo ready && exec sleep 1000'\r")  # bash may lose keys until its child is a program
        terminal.wait_for("\nready\r\n")
        terminal.type(keys)
        terminal.wait_for(PROMPT)
        terminal.type("echo code $?\r")
        terminal.wait_for(f"code {code}\r\n")
        terminal.wait_for(PROMPT)
    terminal.type('kill -9 %1; while [ "$(jobs -s)" ]; do sleep 0.1; done\r')  # bash must have seen it end
    terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_program_in_place_of_the_shell(bench: Bench, start: Start) -> None:
    terminal = start("--", "bash", "-c", "read -r -p 'name? ' name; echo $name; exec sleep 1000")
    terminal.wait_for("name? ")
    terminal.type("kim\r")
    terminal.wait_for("kim\r\nkim\r\n")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert list(bench.runs.iterdir()) == []


def test_it_ends_with_its_terminal_and_keeps_what_was_written(bench: Bench, start: Start) -> None:
    terminal = start()
    terminal.wait_for(PROMPT)
    terminal.type("touch $CTRAIN_RUN_DIR/metrics.jsonl; sleep 1000 & sleep 1000\r")
    wait_for(bench.one / "metrics.jsonl")
    terminal.close()
    assert [path.name for path in bench.one.iterdir()] == ["metrics.jsonl"]
    assert not bench.orphans()


def test_sigterm_ends_it_and_the_terminal_is_as_before(bench: Bench, start: Start) -> None:
    terminal = start("--", "bash", "-c", "stty raw -echo; echo ready; exec sleep 1000")
    terminal.wait_for("ready")
    assert not terminal.echoes()
    os.kill(terminal.pid, signal.SIGTERM)
    terminal.end()
    assert list(bench.runs.iterdir()) == []


def test_a_program_that_is_not_there(bench: Bench, start: Start) -> None:
    terminal = start("--", "no-such-program")
    terminal.wait_for("ctrain: command not found in the image: no-such-program\r\n")
    assert terminal.end() == 127
    assert list(bench.runs.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code", "shown"),
    [(["--here"], 5, "0/1 from the site\r\n"), ([], 72, "ctrain: the toy has no terminals. Use another scheduler\r\n")],
)
def test_here_is_this_machine_with_the_settings_of_the_site(
    tmp_path: Path, options: list[str], code: int, shown: str
) -> None:
    bench = Bench(tmp_path, "toy")
    (tmp_path / "toy.yaml").write_text("name: toy\nscheduler: toy\nenv: {ORIGIN: the site}\n")
    program = ("bash", "-c", "echo $RANK/$WORLD_SIZE from $ORIGIN; exit 5")
    terminal = Terminal(bench.argv(*words(bench, *options, "--", *program)), tmp_path, bench.environment)
    terminal.wait_for(shown)
    assert terminal.end() == code
    assert list(bench.runs.iterdir()) == []


def test_without_a_terminal_it_is_refused(bench: Bench) -> None:
    code, out, error = ended(bench.ctrain(*words(bench)))
    assert (code, out) == (64, "")
    assert error == (
        "ctrain: ctrain shell needs a terminal. Run a program without one: ctrain run --image IMAGE -- PROGRAM\n"
    )
    assert not bench.runs.exists()


def test_the_plan_can_be_seen(bench: Bench) -> None:
    code, out, _ = ended(bench.ctrain(*words(bench, "--dry-run")))
    assert code == 0
    assert "\n--- task.sh\n" in out
    assert not bench.runs.exists()


@pytest.mark.parametrize("option", ["--nodes=2", "--launcher=mpi", "--resume=x", "--ranks-per-node=2"])
def test_options_that_only_runs_have(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["shell", option]) == 64
    assert capsys.readouterr().err.startswith(f"ctrain: unrecognized arguments: {option}. ")

"""Signals, and streams that fail, while a run is watched: printing never decides over a job; no orphans."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.runs import Bench, ended, wait_for

READY = 'touch "$CTRAIN_RUN_DIR/ready-$RANK"; '
CANCELLED = {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
COMPLETED = {"code": 0, "reason": "completed", "by": "program", "ending": "completed"}
NO_ERRORS = {"stderr": subprocess.DEVNULL}
FOUR = ("--nodes", "2", "--ranks-per-node", "2")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.end()


def all_ready(bench: Bench, ranks: int) -> bool:
    return len(list(bench.one.glob("ready-*"))) == ranks


def all_asleep(bench: Bench, ranks: int) -> bool:
    """Whether each rank is past what it says ready from: until then its shell has not become what resists."""
    return all_ready(bench, ranks) and sum(b"sleep\0" in command for command in bench.processes().values()) >= ranks


# How a program may resist: each is one rank's command, after it has said that it is ready.
STUBBORN = {
    "ignores SIGTERM": "trap '' TERM; " + READY + "while :; do sleep 1; done",
    "has left the session": "setsid sleep 600 & " + READY + "wait",
    "has become a daemon": "(setsid sleep 600 </dev/null >/dev/null 2>&1 & ) ; " + READY + "exec sleep 600",
    "ignores it in a child": "(trap '' TERM; " + READY + "exec sleep 600) & wait",
}


@pytest.mark.parametrize("launcher", ["env", "mpi", "torchrun"])
@pytest.mark.parametrize("how", sorted(STUBBORN))
def test_ctrl_c_ends_the_whole_tree(bench: Bench, how: str, launcher: str) -> None:
    # The others end by themselves; but of these, too, each script must have seen the signal before it is killed.
    grace = {"GRACE": "4"} if how.startswith("ignores") else {}
    run = bench.run(*FOUR, "--launcher", launcher, "--", "bash", "-c", STUBBORN[how], **grace)
    wait_for(lambda: all_asleep(bench, 4))
    run.send_signal(signal.SIGINT)
    code, out, error = ended(run)
    assert (code, error) == (130, "")
    assert bench.ending() == CANCELLED
    no_end = re.search("([1-4]) of 4 ranks recorded no end", bench.record()["exit"]["reason"])
    assert (int(no_end[1]) if no_end else 0) == (4 if how.startswith("ignores") else 0)
    assert "cancelling process" in out
    assert not bench.orphans()


def test_a_launcher_that_dies_without_ending_its_ranks(bench: Bench) -> None:
    """mpirun gives its ranks process groups of their own; killed, it leaves them behind."""
    run = bench.run("--ranks-per-node", "2", "--", "bash", "-c", READY + "exec sleep 600")
    wait_for(lambda: all_ready(bench, 2))
    (mpirun,) = [pid for pid, command in bench.processes().items() if b"mpirun\0-np" in command]
    os.kill(mpirun, signal.SIGKILL)
    code, _, _ = ended(run)
    assert code == 137
    assert bench.record()["exit"]["by"] == "program"
    assert not bench.orphans()


def test_two_ctrl_c_in_a_row_are_one_cancellation(bench: Bench) -> None:
    run = bench.run("--", "bash", "-c", READY + "exec sleep 600")
    wait_for(lambda: all_ready(bench, 1))
    run.send_signal(signal.SIGINT)
    time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    code, out, error = ended(run)
    assert (code, error) == (130, "")
    assert out.count("cancelling process") == 1
    assert bench.ending() == CANCELLED
    assert not bench.orphans()


def test_ctrl_c_while_the_reader_of_a_pipe_is_gone(bench: Bench) -> None:
    """As in `ctrain run ... | tee log`: tee dies of the same Ctrl-C."""
    run = bench.run("--", "bash", "-c", READY + "while sleep 0.1; do echo x; done", streams=NO_ERRORS)
    wait_for(lambda: all_ready(bench, 1))
    assert run.stdout
    run.stdout.close()
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    assert bench.ending() == CANCELLED
    assert not bench.orphans()


def test_head_takes_one_line_and_the_run_goes_on(bench: Bench) -> None:
    program = "for i in {1..9}; do echo $i; sleep 0.1; done; exit 3"
    run = bench.run("--", "bash", "-c", program, streams=NO_ERRORS)
    assert run.stdout
    assert run.stdout.readline().startswith("site ")
    run.stdout.close()
    assert run.wait(60) == 3
    assert bench.record()["exit"]["code"] == 3
    assert bench.log(0).endswith("9\n")


@pytest.mark.parametrize("streams", [">/dev/full", ">/dev/full 2>&1", ">&-", "<&- >&- 2>&-"])
def test_output_that_cannot_be_written(bench: Bench, streams: str) -> None:
    command = bench.argv(*bench.run_words(), "--", "bash", "-c", "echo hello; exit 3")
    script = ["bash", "-c", f'"$@" {streams}', "bash", *command]
    done = subprocess.run(script, cwd=bench.folder, env=bench.environment, timeout=60, check=False)
    assert done.returncode == 3
    assert bench.record()["exit"]["code"] == 3
    assert bench.log(0) == "hello\n"


def test_a_closed_terminal_leaves_the_run_to_attach(bench: Bench) -> None:
    go = bench.folder / "go"
    run = bench.run("--", "bash", "-c", READY + f"while ! [ -e {go} ]; do sleep 0.05; done; exit 4")
    wait_for(lambda: all_ready(bench, 1))
    run.send_signal(signal.SIGHUP)
    assert ended(run)[0] == 129
    assert bench.record()["exit"] is None
    assert bench.processes()
    go.touch()
    assert ended(bench.attach())[0] == 4
    assert bench.record()["exit"]["code"] == 4
    assert not bench.orphans()


def test_a_job_script_that_is_killed_leaves_nothing_behind(bench: Bench) -> None:
    run = bench.run(*FOUR, "--launcher", "env", "--", "bash", "-c", READY + "exec sleep 600")
    wait_for(lambda: all_ready(bench, 4))
    os.killpg(bench.job_process(), signal.SIGKILL)  # job.sh and its subshells; tasks have groups of their own
    code, out, _ = ended(run)
    assert code != 0 and "job.sh was killed, and no rank had failed before" in out and "failed first" not in out
    assert not bench.orphans()


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_output_that_the_terminal_cannot_show(bench: Bench, encoding: str) -> None:
    """A tqdm bar, and bytes that are no text."""
    program = r"printf '50%%|\xe2\x96\x88\xe2\x96\x88  | 5/10\n\xff\xfe\n'; exit 3"
    code, out, error = ended(bench.run("--", "bash", "-c", program, PYTHONIOENCODING=encoding))
    assert (code, error) == (3, "")
    assert "5/10" in out
    assert bench.record()["exit"]["code"] == 3


def test_ascii_locale_without_any_help_of_python(bench: Bench) -> None:
    program = r"printf '\xe2\x96\x88\n'; exit 3"
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, _, error = ended(bench.run("--", "bash", "-c", program, **variables))
    assert (code, error) == (3, "")


def test_a_warning_signal_reaches_the_program_and_no_wrapper_dies(bench: Bench) -> None:
    """Of Lightning and submitit: SIGUSR1 some time before the limit."""
    program = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("saved")))
pathlib.Path(os.environ["CTRAIN_RUN_DIR"], "ready-0").touch()
time.sleep(600)
"""
    run = bench.run("--launcher", "env", "--", "python3", "-c", program)
    wait_for(lambda: all_ready(bench, 1))
    os.kill(bench.job_process(), signal.SIGUSR1)
    code, _, _ = ended(run)
    assert (code, bench.log(0)) == (143, "saved\n")
    assert bench.record()["exit"]["ending"] == "saved and left"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_run(bench: Bench, number: signal.Signals) -> None:
    program = 'touch "$CTRAIN_RUN_DIR/checkpoint/step-1"; ' + READY + "exec sleep 600"
    run = bench.run("--ranks-per-node", "2", "--", "bash", "-c", program)
    wait_for(lambda: all_ready(bench, 2))
    run.send_signal(number)
    code, out, error = ended(run)
    assert (code, error) == (130, "")
    name = bench.record()["attempts"][0]["name"]
    assert f"cancelling {name} ..." in out.splitlines()
    assert out.splitlines()[-3:] == [
        f"cancelled {name}",
        f"checkpoint kept; resume with: --resume {bench.one}",
        f"run directory: {bench.one}",
    ]
    assert bench.ending() == CANCELLED
    assert not bench.orphans()


@pytest.mark.parametrize("launcher", ["env", "mpi", "torchrun"])
def test_a_program_that_saves_when_it_is_cancelled(bench: Bench, launcher: str) -> None:
    """Rank 0 takes its time for that, more than mpirun would give it after the other has ended, which does at once."""
    ended_before = 'grep -qs "rank.: 1, .code.: 143" "$CTRAIN_RUN_DIR/nodes/0.jsonl"'
    saving = f"until {ended_before}; do sleep 0.05; done; sleep 1.5; echo saved"
    save = f"trap 'if [ $RANK = 0 ]; then {saving}; fi; exit 143' TERM"
    program = f"{save}; {READY} while :; do sleep 0.05; done"
    argv = ("--ranks-per-node", "2", "--launcher", launcher, "--", "bash", "-c", program)
    run = bench.run(*argv)
    wait_for(lambda: all_ready(bench, 2))
    run.send_signal(signal.SIGINT)
    assert ended(run)[0] == 130
    assert bench.log(0).endswith("saved\n")
    events = [json.loads(line) for line in (bench.one / "nodes/0.jsonl").read_text().splitlines()]
    assert sorted((event["rank"], event["code"]) for event in events if event["what"] == "ended") == [
        (0, 143),
        (1, 143),
    ]


def test_cancel_by_another_process_ends_the_one_that_watches(bench: Bench) -> None:
    run = bench.run("--", "bash", "-c", READY + "exec sleep 600")
    wait_for(lambda: all_ready(bench, 1))
    code, _, error = ended(bench.attach(verb="cancel"))
    assert (code, error) == (0, "")
    assert ended(run)[0] == 130
    assert bench.ending() == CANCELLED
    assert not bench.orphans()

"""Stacks of real Pythons that hang, and of programs that must not be disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime import payload
from ctrain_runtime.payload import watch
from ctrain_runtime.payload.watch import Place, Process, Stacks, find_place
from samples.runs import wait_for

WAITS = """
import sys, threading, time
def load(path):
    open(path, "w").close()
    time.sleep(600)  # shard 40
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
load(sys.argv[1])
"""


class Programs:
    """Programs of ranks of a run, whose Pythons are prepared as inside.sh does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, list[subprocess.Popen[bytes]]()
        (folder / "stacks").mkdir()
        (folder / ".startup").mkdir()
        (folder / ".startup/sitecustomize.py").write_text(payload.text("stacks.py"))
        (folder / "waits.py").write_text(WAITS)

    def start(self, rank: int, *argv: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a program that makes a file, whose name is its last word; until it has."""
        mark = self.folder / f"begun-{len(self.started)}"
        paths = f"{self.folder}/.startup:{variables.pop('more', '')}"
        who = {"CTRAIN_RUN_DIR": str(self.folder), "CTRAIN_HEARTBEAT": f"/home/ctrain/.heartbeat/{rank}"}
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, **who, **variables}
        started = subprocess.Popen([*argv, str(mark)], env=environment)
        self.started.append(started)
        wait_for(mark)
        return started


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(tmp_path)
    yield programs
    for started in programs.started:
        started.kill()
        started.wait()


def test_a_rank_that_hangs_tells_where(programs: Programs) -> None:
    program = programs.start(3, sys.executable, f"{programs.folder}/waits.py")
    stacks = Stacks(str(programs.folder))
    for _ in range(2):  # again, with the new answer alone
        (text,) = stacks.take([2, 3]).values()
        assert text.startswith(f"--- process {program.pid}: ")
        assert text.count("in load") == 1, text
        assert find_place(text) == Place("waits.py:5 in load: time.sleep(600)  # shard 40", waits=False)
    assert (programs.folder / "stacks/rank3.txt").read_text() == text
    assert program.poll() is None, "it goes on"


def test_others_are_never_signalled(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolated Pythons, other programs, those of other runs, and one that has closed all files."""
    script = f"{programs.folder}/waits.py"
    programs.start(0, sys.executable, "-I", script)
    programs.start(0, "bash", "-c", 'touch "$0"; read -r <> <(:)')
    programs.start(0, sys.executable, script, CTRAIN_RUN_DIR="/another")
    closes = "import os, sys, time; os.closerange(3, 1024); open(sys.argv[1], 'w').close(); time.sleep(600)"
    programs.start(0, sys.executable, "-c", closes)
    sent: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(watch.os, "kill", lambda pid, _: sent.append(pid))
        assert Stacks(str(programs.folder)).take([0]) == {}
    assert sent == []


def test_a_process_that_is_stopped_does_not_answer(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.3)
    program = programs.start(0, sys.executable, f"{programs.folder}/waits.py")
    program.send_signal(signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{program.pid}/stat").read_text().rpartition(") ")[2][0] == "T")
    (text,) = Stacks(str(programs.folder)).take([0]).values()
    assert text.endswith("\nno answer (state T)\n")
    assert find_place(text) == Place("an unknown line: stopped by a signal", waits=False)
    assert find_place(text.replace("state T", "state R")) == Place("", waits=False)


SPY = """#!/usr/bin/env python3
import json, sys
assert sys.argv[1:4] == ["dump", "--nonblocking", "--json"], sys.argv
frames = [("sleep", "/usr/lib/python3.12/x.py", 3), ("load", "/job/data.py", 7)]
shown = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
threads = [{"thread_id": 1, "thread_name": "MainThread", "frames": shown},
           {"thread_id": 2, "thread_name": None, "frames": []}]
print(json.dumps(threads))
"""


def test_a_process_that_ends_while_it_is_asked_harms_nobody(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 0.0)
    gone = 1 << 23  # above the kernel's highest number
    process = Process(gone, 0, f"/proc/{gone}/fd/200", 1, "python train.py")
    monkeypatch.setattr(Stacks, "_find", lambda *_: iter([process]))
    (text,) = Stacks(str(programs.folder)).take([0]).values()
    assert text == f"--- process {gone}: python train.py\nno answer (state )\n"


@pytest.mark.parametrize(
    ("spy", "place"),
    [
        (SPY, "data.py:7 in load"),
        ("#!/bin/sh\nexit 1\n", ""),  # it may not
        ("#!/bin/sh\nexec sleep 600\n", ""),
        ("#!/bin/sh\necho '[{}]'\n", ""),  # of another version
    ],
)
def test_py_spy_tells_of_a_python_that_is_not_prepared(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, spy: str, place: str
) -> None:
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 5.0 if place else 0.5)
    (programs.folder / "bin").mkdir()
    (programs.folder / "bin/py-spy").write_text(spy)
    (programs.folder / "bin/py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs.folder}/bin:{os.environ['PATH']}")
    program = programs.start(0, sys.executable, "-I", f"{programs.folder}/waits.py")
    programs.start(1, "bash", "-c", 'touch "$0"; read -r <> <(:)')
    stacks = Stacks(str(programs.folder)).take([0, 1])
    assert [find_place(text).line for text in stacks.values()] == ([place] if place else [])
    assert program.poll() is None
    if place:
        assert f"process {program.pid}: " in (programs.folder / "stacks/rank0.txt").read_text()


@pytest.mark.parametrize(("text", "printed"), [("print('of the image')", "of the image\n"), ("", "")])
def test_the_images_own_sitecustomize_runs(programs: Programs, text: str, printed: str) -> None:
    own = programs.folder / "own"
    own.mkdir()
    if text:
        (own / "sitecustomize.py").write_text(text)
    environment = {"PYTHONPATH": f"{programs.folder}/.startup:{own}", "PATH": os.environ["PATH"]}
    code = "import sys, sitecustomize; assert not [path for path in sys.path if 'startup' in path]"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (printed, "")


def test_one_that_fails_is_seen(programs: Programs) -> None:
    """As without ctrain."""
    own = programs.folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import not_there")
    environment = {"PYTHONPATH": f"{programs.folder}/.startup:{own}", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, text=True)
    assert "No module named 'not_there'" in done.stderr


DDP = """--- process 7: python train.py
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait

Current thread 0x00007f02 (most recent call first):
  File "/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/usr/local/lib/python3.12/dist-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/scratch/kim/job/train.py", line 88 in step
  File "/scratch/kim/job/train.py", line 120 in <module>

--- process 9: python -c worker
Current thread 0x00007f03 (most recent call first):
  File "/scratch/kim/job/data.py", line 3 in load
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (DDP, Place("train.py:88 in step", waits=True)),
        (DDP.replace("torch/distributed/", "numpy/"), Place("train.py:88 in step", waits=False)),
        (DDP.replace("/scratch/kim/job/", "/usr/lib/python3.12/"), Place("", waits=False)),
        ("", Place("", waits=False)),
    ],
)
def test_where_a_rank_stands(text: str, place: Place) -> None:
    assert find_place(text) == place

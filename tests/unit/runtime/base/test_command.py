from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError
from samples.programs import answer, write_program


def test_what_a_command_said() -> None:
    result = command.run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (result.code, result.stdout, result.stderr) == (3, "out\n", "err\n")


def test_a_command_gets_no_shell_no_input_and_the_given_surroundings(tmp_path: Path) -> None:
    show = "import os, sys; print(sys.argv[1:], os.getcwd(), sorted(os.environ.items())[0], sys.stdin.read() == '')"
    result = command.run([sys.executable, "-c", show, "$HOME; *"], env={"A": "b c"}, cwd=tmp_path)
    assert result.stdout == f"['$HOME; *'] {tmp_path} ('A', 'b c') True\n"


def test_input_that_is_given() -> None:
    assert command.run(["/bin/cat"], stdin="nvcr.io\n").stdout == "nvcr.io\n"


def test_output_that_is_no_text_is_read_all_the_same() -> None:
    assert command.run(["/bin/sh", "-c", r"printf 'a\377b'"]).stdout == "a\ufffdb"


def test_a_failure_is_the_programs_name_and_its_last_line(programs: Path) -> None:
    answer(programs, "sinfo", error="sinfo: loading\n  no controller  \n", code=1)
    with pytest.raises(CtrainError, match=r"^sinfo failed: no controller$"):
        command.run([f"{programs}/sinfo"])


@pytest.mark.parametrize(
    ("out", "error", "complaint"), [("a\nb\n", "", "b"), ("a", "c\n", "c"), ("", "", "exit code 4")]
)
def test_complaint(out: str, error: str, complaint: str) -> None:
    assert command.CommandResult(("x",), 4, out, error).last_error_line() == complaint


@pytest.mark.usefixtures("programs")
def test_a_missing_program() -> None:
    assert command.which("sinfo") is None
    with pytest.raises(CtrainError, match=r"^sinfo cannot be started: No such file or directory$"):
        command.run(["sinfo"])


def test_a_program_that_is_no_program(programs: Path) -> None:
    write_program(programs / "sinfo", "no interpreter\n")
    with pytest.raises(CtrainError, match=r"sinfo cannot be started: Exec format error$"):
        command.run([str(programs / "sinfo")])


def test_a_program_that_hangs() -> None:
    with pytest.raises(CtrainError, match=r"^/bin/sleep timed out after 0.05 s$"):
        command.run(["/bin/sleep", "60"], timeout=0.05)


def test_a_command_inherits_the_given_file_descriptors(tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as held:
        command.run(["/bin/sh", "-c", f"echo x >/dev/fd/{held.fileno()}"], pass_fds=[held.fileno()])
    assert (tmp_path / "held").read_text() == "x\n"


def test_a_session_of_its_own() -> None:
    show = "import os; print(os.getsid(0) == os.getpid())"
    assert command.run([sys.executable, "-c", show]).stdout == "False\n"
    assert command.run([sys.executable, "-c", show], new_session=True).stdout == "True\n"


@pytest.mark.parametrize(("new_session", "survives"), [(True, True), (False, False)])
def test_an_interrupt_ends_only_a_command_of_the_same_session(
    tmp_path: Path, new_session: bool, survives: bool
) -> None:
    pid, done = tmp_path / "pid", tmp_path / "done"
    # Interrupts its caller once that waits (it closes stdin), waits until it is gone, and then does its work.
    work = f"echo $$ >{pid}; cat; kill -INT $PPID; while kill -0 $PPID 2>&-; do sleep 0.01; done; echo x >{done}"
    call = (
        f"from ctrain_runtime.base import command as c; c.run(['/bin/sh', '-c', {work!r}], new_session={new_session})"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(command.__file__).parents[2])}
    caller = subprocess.run([sys.executable, "-c", call], env=env, capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in caller.stderr
    wait_for(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())
    assert done.exists() is survives


@pytest.mark.parametrize("number", [signal.SIGINT, None])
def test_an_interrupt_while_a_logged_command_starts_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: Optional[signal.Signals]
) -> None:
    """Not only while it is waited for: nobody else would know of it."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        if number:
            os.kill(os.getpid(), number)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) if number else contextlib.nullcontext():
        command.run_logged(["/bin/sleep", "600" if number else "0"], tmp_path / "log")
    assert started[0].returncode == (-signal.SIGTERM if number else 0)
    assert signal.getsignal(signal.SIGINT) is before


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_find_gives_the_absolute_path(programs: Path) -> None:
    answer(programs, "sinfo")
    assert command.which("sinfo") == str(programs / "sinfo")

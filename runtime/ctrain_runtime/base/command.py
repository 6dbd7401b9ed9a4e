"""Runs other programs. Commands are argv lists, never passed to a shell."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Optional

from ctrain_runtime.errors import CtrainError

POLL_SECONDS = 0.2
GRACE_SECONDS = 10


@dataclass(frozen=True)
class CommandResult:
    """Output and exit code of a command. `code` is negative for a signal, as in subprocess."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def last_error_line(self) -> str:
        """The last line of its stderr, else of its stdout, for use in an error message."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}"


def which(name: str) -> Optional[str]:
    """Absolute path of a program on PATH, or None."""
    return shutil.which(name)


def run(
    argv: Sequence[str],
    *,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Path] = None,
    timeout: float = 60,
    check: bool = True,
    stdin: str = "",
    new_session: bool = False,
    pass_fds: Sequence[int] = (),
) -> CommandResult:
    """Run a command and return its output.

    `timeout` is in seconds; `pass_fds` are file descriptors that the command inherits. With `new_session` Ctrl-C does
    not reach the command, and an exception that interrupts the wait for it leaves it running. Raises CtrainError if the
    command cannot be started, times out or (with `check`) returns a non-zero exit code.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=new_session,
            pass_fds=tuple(pass_fds),
        )
    except OSError as error:
        raise CtrainError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        _kill(process)
        raise CtrainError(f"{argv[0]} timed out after {timeout:g} s") from error
    except BaseException:
        if not new_session:
            _kill(process)
        raise
    result = CommandResult(tuple(argv), process.returncode, stdout, stderr)
    if check and result.code != 0:
        raise CtrainError(f"{Path(argv[0]).name} failed: {result.last_error_line()}")
    return result


def start(argv: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
    """Start a command of which the caller handles the streams and the end. Raises CtrainError if it cannot be
    started."""
    try:
        return subprocess.Popen(list(argv), **streams)
    except OSError as error:
        raise CtrainError(f"{argv[0]} cannot be started: {error.strerror or error}") from error


def _kill(process: subprocess.Popen[str]) -> None:
    with process:  # closes its pipes and waits for it
        process.kill()


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Path] = None,
    tick: Callable[[], None] = lambda: None,
) -> int:
    """Run a long command with its output appended to `log`; return its exit code.

    `tick` is called every POLL_SECONDS. The command runs in its own process group; an exception during the wait
    (KeyboardInterrupt, an error in `tick`) terminates that group before it propagates.
    """
    with log.open("ab") as out, _deferred_interrupt() as raise_interrupt:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise CtrainError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
        try:
            raise_interrupt()
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=POLL_SECONDS)
                tick()
        except BaseException:
            _terminate_group(process)
            raise


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until the function is called that is yielded: while a process is started, it would lose it."""
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield lambda: None
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))

    def end() -> None:
        signal.signal(signal.SIGINT, before)
        while came:
            signal.raise_signal(came.pop())

    try:
        yield end
    finally:
        end()


def _terminate_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the process group, and SIGKILL after GRACE_SECONDS."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    # WNOWAIT: the leader stays a zombie until the whole group has been killed, so the group ID cannot be reused.
    waited = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        while time.monotonic() < deadline and not os.waitid(os.P_PID, process.pid, waited):
            time.sleep(0.05)
    finally:  # also if a second signal ends the wait
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_on_terminal(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command that has the terminal of this process's standard input; its exit code, 128 + N after signal N.

    Ctrl-C and Ctrl-\\ are the command's; SIGTERM and SIGHUP are passed on to it. Afterwards the terminal is as it was
    before, however the command ended. Raises CtrainError if the command cannot be started.
    """
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: Optional[FrameType]) -> None:
        for process in started:
            if number in (signal.SIGTERM, signal.SIGHUP):
                process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
    before: dict[signal.Signals, Any] = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        started.append(subprocess.Popen(list(argv), env=dict(env)))
        code = started[0].wait()
        return code if code >= 0 else 128 - code
    except OSError as error:
        raise CtrainError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
    finally:
        before[signal.SIGTTOU] = signal.signal(
            signal.SIGTTOU, signal.SIG_IGN
        )  # the command may have left another group
        with contextlib.suppress(OSError, termios.error):  # the terminal is gone
            os.tcsetpgrp(terminal, os.getpgrp())
            termios.tcsetattr(terminal, termios.TCSANOW, settings)
        for number, handler in before.items():
            signal.signal(number, handler)

"""The one place that starts other programs. Commands are argv lists; there is never a shell in between."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import CtrainError


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. `code` is negative for a signal, as in subprocess."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def last_error_line(self) -> str:
        """The last line that the command said, for a one-line error."""
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
) -> CommandResult:
    """Run a command to its end and return what it said.

    `timeout` is in seconds; `stdin` is what the command reads. Raises CtrainError when the command can't be started,
    takes too long or (with `check`) ends with a code other than 0.
    """
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            env=None if env is None else dict(env),
            cwd=cwd,
            timeout=timeout,
        )
    except OSError as error:
        raise CtrainError(f"{argv[0]} can't be started: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise CtrainError(f"{argv[0]} did not answer within {timeout:g} s") from error
    result = CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)
    if check and result.code != 0:
        raise CtrainError(f"{Path(argv[0]).name} failed: {result.last_error_line()}")
    return result


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Path] = None,
    tick: Callable[[], None] = lambda: None,
) -> int:
    """Run a long command with its output appended to `log`; return its exit code.

    `tick` is called several times a second. The command gets a process group of its own, and whatever interrupts
    the wait (Ctrl-C, a signal turned into an exception, an error in `tick`) ends that whole group first.
    """
    with log.open("ab") as out:
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
            raise CtrainError(f"{argv[0]} can't be started: {error.strerror or error}") from error
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=0.2)
                tick()
        except BaseException:
            _end_group(process)
            raise


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it started: politely, then after 10 s by force."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    # WNOWAIT: the process stays a zombie until its whole group is gone, so that its number can't be another's.
    while time.monotonic() < deadline and not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

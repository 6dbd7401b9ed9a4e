"""A login node, reached by the user's own ssh: OpenSSH's client with its configuration, keys and jump hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import IO, Any, Optional

from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError, RemoteError, UsageError
from ctrain_runtime.remote import SERVE, own_copy
from ctrain_runtime.remote.words import MARK, as_word

HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(@[A-Za-z0-9_][A-Za-z0-9_.:%-]*)?")
LETTERS = {signal.SIGINT: b"I", signal.SIGTERM: b"T", signal.SIGHUP: b"H"}  # signals, where no terminal sends them
LOST, NOT_FOUND = 255, 127  # exit codes of ssh, if it fails itself, and of a shell
_ABSENT = "ctrain: none here"  # a line of _START, by which it is known from a ctrain that does not start
# A login shell, since PATH is often set there alone; ~/ctrain is where docs/installing.md puts it, and the last place
# where `install` does. Constant: shells of all kinds read it.
_START = (
    f'exec bash -lc \'PATH="$PATH:$HOME/ctrain/bin:$HOME/.local/bin:$HOME/{own_copy.PLACE}/$2/bin"; '
    f'command -v ctrain >/dev/null || {{ echo "{_ABSENT}" >&2; exit {NOT_FOUND}; }}; exec ctrain {SERVE} "$1"\' ctrain'
)
_CAUSES = (  # what ssh says, the cause, the next step
    ("Could not resolve hostname", "host unknown", "Name a host, or one of ~/.ssh/config"),
    ("Host key verification failed", "its key is not the known one, or is not known yet", "Compare it: ssh {host}"),
    ("Permission denied", "authentication refused", "Log in by hand first: ssh {host}"),
    ("Too many authentication failures", "authentication refused", "Log in by hand first: ssh {host}"),
)


class NoCtrainError(RemoteError):
    """The login node has no ctrain."""


class Connection:
    """While entered: one authenticated connection to `host`, which all requests share. It is one that the user's own
    ssh keeps open (ControlMaster), if there is one."""

    def __init__(self, host: str) -> None:
        if not HOST.fullmatch(host):
            raise UsageError(f"not a login node: {host!r}", "Write HOST or USER@HOST; ports belong to ~/.ssh/config")
        self.host, self._own_name = host, own_copy.name()
        self._options: tuple[str, ...] = ()

    def __enter__(self) -> Connection:
        if not command.which("ssh"):
            raise RemoteError("ssh not found on PATH", "Install OpenSSH's client")
        self._folder = tempfile.mkdtemp(prefix="ctrain-")
        try:
            if not self._is_alive():
                self._options = ("-o", f"ControlPath={self._folder}/%C", "-o", "ControlPersist=60")
                self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._close()

    def call(self, request: Mapping[str, Any], data: Optional[IO[bytes]] = None) -> dict[str, Any]:
        """The answer to a request, with the `data` that belong to it. Raises RemoteError, and what the ctrain there
        raises."""
        with self.answer(request, data) as stream:
            text = stream.read()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise RemoteError(f"{self.host}: cannot read the answer of ctrain: {text[:80]!r}")
        return answer

    def install(self) -> str:
        """Put this ctrain there, for this connection and later ones; into which directory. Raises CtrainError."""
        argv = ["ssh", *self._options, "-T", "--", self.host, f"exec bash -ls {self._own_name}"]
        with own_copy.pack() as packed, tempfile.TemporaryFile() as errors:
            _rewind(packed)
            with command.start(argv, stdin=packed, stdout=subprocess.DEVNULL, stderr=errors) as process:
                code = process.wait()
            if code:
                raise self._failure(code, errors)
        return f"~/{own_copy.PLACE}/{self._own_name}"

    @contextlib.contextmanager
    def answer(self, request: Mapping[str, Any], data: Optional[IO[bytes]] = None) -> Iterator[IO[bytes]]:
        """The answer to a request as a stream; who reads it raises EOFError where it is cut short."""
        argv = self._argv(request)
        if data:
            _rewind(data)
        with tempfile.TemporaryFile() as errors:
            streams = {"stdin": data or subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
            with command.start(argv, **streams) as process:
                assert process.stdout  # noqa: S101  # for mypy: it is a pipe
                try:
                    if not any(line == MARK for line in process.stdout):
                        raise EOFError
                    yield process.stdout
                except EOFError as error:
                    raise self._failure(process.wait(), errors) from error
                except BaseException:
                    process.kill()
                    raise
            if process.returncode:
                raise self._failure(process.returncode, errors)

    def follow(self, argv: Sequence[str], directory: str) -> int:
        """Run `ctrain ARGV` there, with this terminal if there is one; its exit code. Raises RemoteError if the
        connection is lost."""
        on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        request = {"what": "run", "argv": list(argv), "directory": directory, "piped": not on_terminal}
        ssh = self._argv(request, "-o", "LogLevel=ERROR", *(["-t"] if on_terminal else []))
        code = command.run_on_terminal(ssh, os.environ) if on_terminal else _run_piped(ssh)
        if code == LOST and not self._is_alive():
            hint = f"A run that was submitted goes on; watch it with: ctrain attach last --on {self.host}"
            raise RemoteError(f"connection to {self.host} lost", hint)
        return code

    def _argv(self, request: Mapping[str, Any], *options: str) -> list[str]:
        terminal = () if "-t" in options else ("-T",)
        return [
            "ssh",
            *self._options,
            *terminal,
            *options,
            "--",
            self.host,
            f"{_START} {as_word(dict(request))} {self._own_name}",
        ]

    def _open(self) -> None:
        batch = () if _can_ask() else ("-o", "BatchMode=yes")
        with tempfile.TemporaryFile() as errors:  # no pipe: the master keeps it open
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": errors}
            with command.start(
                ["ssh", "-M", "-N", "-f", *batch, *self._options, "--", self.host], **streams
            ) as process:
                code = process.wait()
            if code:
                raise self._refusal(_text(errors), is_batch=bool(batch))

    def _is_alive(self) -> bool:
        check = ["ssh", *self._options, "-O", "check", "--", self.host]
        return command.run(check, check=False).code == 0

    def _close(self) -> None:
        if self._options:
            command.run(["ssh", *self._options, "-O", "exit", "--", self.host], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _refusal(self, text: str, *, is_batch: bool) -> RemoteError:
        """Why there is no connection, by what ssh has printed."""
        for words, cause, hint in _CAUSES:
            if words in text:
                is_asked = is_batch and words == "Permission denied"
                asked = "; without a terminal, ssh asks for no password: use a key" if is_asked else ""
                return RemoteError(f"{self.host}: {cause}", f"{hint.format(host=self.host)}{asked}")
        return RemoteError(f"cannot reach {self.host}: {_last_line(text)}", f"Try by hand: ssh {self.host}")

    def _failure(self, code: int, errors: IO[bytes]) -> CtrainError:
        """Why a request has failed."""
        line = _last_line(_text(errors))
        if code == LOST:
            return RemoteError(f"connection to {self.host} lost: {line}", "Retry the same line")
        if code == NOT_FOUND and line == _ABSENT:
            return NoCtrainError(f"no ctrain on {self.host}")
        if f"'{SERVE}'" in line:
            return RemoteError(f"the ctrain of {self.host} is too old for --on", "Install the same version on both")
        kinds = {kind.exit_code: kind for kind in CtrainError.__subclasses__()}
        words = line.removeprefix("ctrain: ") or f"exit code {code}, without an answer"
        return kinds.get(code, RemoteError)(f"{self.host}: {words}")


def _can_ask() -> bool:
    """Whether ssh can ask for a password."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return bool(os.environ.get("SSH_ASKPASS"))
    return True


def _run_piped(argv: Sequence[str]) -> int:
    """Run ssh without a terminal: signals are written to it as letters, of which the ctrain there makes signals."""
    started: list[subprocess.Popen[bytes]] = []
    early: list[bytes] = []

    def pass_on(number: int, _frame: Optional[FrameType]) -> None:
        early.append(LETTERS[signal.Signals(number)])
        write()

    def write() -> None:
        for process in started:
            while early and process.stdin:
                with contextlib.suppress(OSError):  # it has ended
                    os.write(process.stdin.fileno(), early.pop(0))

    # Signals that the caller ignores stay ignored, as SIGHUP under nohup.
    handled = [number for number in LETTERS if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[signal.Signals, Any] = {number: signal.signal(number, pass_on) for number in handled}
    try:
        # In a session of its own: Ctrl-C is for the ctrain there, and reaches it as a letter.
        started.append(command.start(argv, stdin=subprocess.PIPE, start_new_session=True))
        write()
        code = started[0].wait()
        return code if code >= 0 else 128 - code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in started:
            if process.stdin:
                process.stdin.close()


def _rewind(data: IO[bytes]) -> None:
    """For another program: what Python has read ahead does not count for it."""
    data.flush()
    os.lseek(data.fileno(), 0, os.SEEK_SET)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""

"""Streams that fail. With real processes: what Python does to them when it starts and ends is part of the matter."""

from __future__ import annotations

import fcntl
import io
import json
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from ctrain_runtime.cli import output
from ctrain_runtime.cli.output import ERASE_LINE, Activity, Writer, print_line
from samples.runs import CTRAIN, Bench

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
LATIN = {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}
FAILING = [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1", "| true"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_width_is_that_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of stderr, where stdout is a file."""
    monkeypatch.delenv("COLUMNS", raising=False)
    leader, follower = pty.openpty()
    with open(leader, "rb"), open(follower, "w") as stream:  # noqa: PTH123  # descriptors
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 133, 0, 0))
        assert Writer(stream).columns() == 133
        monkeypatch.setenv("COLUMNS", "40")
        assert Writer(stream).columns() == 40
    assert Writer(io.StringIO()).columns() == 40


def shell(
    bench: Bench, redirection: str, arguments: Sequence[str], **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """`ctrain ARGUMENTS REDIRECTION` in bash; the exit code is that of ctrain."""
    line = f'"$@" {redirection}\nexit ${{PIPESTATUS[0]}}'
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-c", CTRAIN, *arguments],
        cwd=bench.folder,
        env={**bench.environment, **variables},
        capture_output=True,
    )


def run_of(bench: Bench, *rest: str) -> list[str]:
    where = ["--site", "local", "--image", str(bench.image), "--runs", str(bench.runs), "--name", "one"]
    return ["run", *where, *rest]


@pytest.mark.parametrize(
    ("redirection", "options"), [*((each, []) for each in FAILING), *((each, ["--json"]) for each in FAILING[-3:])]
)
def test_a_run_has_its_own_exit_code_whatever_happens_to_its_output(
    bench: Bench, redirection: str, options: list[str]
) -> None:
    program = "for i in 1 2 3; do echo $i; sleep 0.1; done; exit 3"
    done = shell(bench, redirection, run_of(bench, *options, "--", "bash", "-c", program))
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert json.loads((bench.runs / "one/record.json").read_text())["exit"]["code"] == 3


@pytest.mark.parametrize("variables", [ASCII, LATIN])
def test_a_program_whose_output_the_terminal_cannot_show(bench: Bench, variables: dict[str, str]) -> None:
    (bench.folder / "say.sh").write_text(r"printf '100%%|█| ü \xff\n'", encoding="utf-8")
    done = shell(bench, "", run_of(bench, "--", "bash", "say.sh"), **variables)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(variables["PYTHONIOENCODING"])
    assert f"100%|?| {'ü' if variables is LATIN else '?'} ?\n" in shown


@pytest.mark.parametrize("redirection", FAILING[:-1])
@pytest.mark.parametrize("name", ["nowhere", "ü", b"\xff".decode("utf-8", "surrogateescape")])
def test_an_error_has_its_exit_code_whatever_happens_to_its_text(bench: Bench, redirection: str, name: str) -> None:
    done = shell(bench, redirection, ["run", f"./{name}"], **ASCII)
    assert done.returncode == 65
    assert done.stderr == b"" or done.stderr.startswith(b"ctrain: ")
    assert done.stderr.count(b"\n") <= 1


@pytest.mark.parametrize("arguments", [["help", "exit-codes"], ["--version"], ["images", "--help"], []])
def test_a_verb_whose_output_goes_nowhere(bench: Bench, arguments: list[str]) -> None:
    if arguments == ["--version"] and not list(metadata.distributions(name="ctrain")):
        pytest.skip("ctrain is not installed here: it has no version")
    for redirection, codes in ((">&-", (0,)), ("| true", (0, 141)), (">/dev/full", (0, 75))):
        done = shell(bench, redirection, arguments)
        assert done.returncode in codes
        assert not done.stderr or (done.returncode, done.stderr.count(b"\n")) == (75, 1)


def test_missing_streams_are_opened_in_their_places() -> None:
    show = "from ctrain_runtime.cli import output; output.prepare(); import os, sys; "
    show += "os.write(3, str([stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]).encode())"
    environment = {"PYTHONPATH": str(Path(output.__file__).parents[2])}
    line = ["bash", "-c", '"$@" 3>&1 <&- >&- 2>&-', "bash", sys.executable, "-c", show]
    assert subprocess.run(line, env=environment, capture_output=True).stdout == b"[0, 1, 2]"


class Failing(io.StringIO):
    """Fails at the second write."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        if self.writes == 2:
            raise BrokenPipeError
        return super().write(text)


def test_a_writer_is_silent_after_the_first_failure() -> None:
    stream = Failing()
    writer = Writer(stream)
    for text in ("a", "b", "c"):
        assert writer.is_dead == (text == "c")
        writer.write(text)
    writer.flush()
    assert (stream.getvalue(), stream.writes) == ("a", 2)


def test_what_a_stream_can_show() -> None:
    assert Writer(io.StringIO()).can_show("█")
    assert not Writer(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")).can_show("█")


def test_a_line_to_a_stream_that_is_closed() -> None:
    stream = io.StringIO()
    stream.close()
    print_line("x", stream)
    assert not Writer(stream).is_terminal()


def test_a_line_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("x")
    print_line()
    print_line("y", sys.stderr)
    assert capsys.readouterr() == ("x\n\n", "y\n")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_a_while_is_one_line_in_a_file_and_a_moving_one_on_a_terminal() -> None:
    steps = (("pulling x", ""), ("pulling x", "1 MB"), ("pulling x", "2 MB"), ("verifying x", ""), ("", ""))
    file, screen = io.StringIO(), Screen()
    for activity in (Activity(file), Activity(screen)):
        for step in steps:
            activity.report(*step)
    assert file.getvalue() == "ctrain: pulling x ...\nctrain: verifying x ...\n"
    drawn = screen.getvalue().split(ERASE_LINE)
    assert drawn == ["", "ctrain: pulling x ", "ctrain: pulling x 1 MB", "ctrain: pulling x 2 MB", *drawn[4:]]
    assert drawn[4:] == ["ctrain: verifying x ", ""]
    assert "\n" not in screen.getvalue()


def test_an_activity_on_a_terminal_that_is_gone() -> None:
    stream = Failing()
    activity = Activity(stream)
    for number in range(3):
        activity.report(f"pulling {number}", "")
    assert stream.getvalue() == "ctrain: pulling 0 ...\n"

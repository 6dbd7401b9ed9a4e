from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ctrain_runtime import command
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


def test_find_gives_the_absolute_path(programs: Path) -> None:
    answer(programs, "sinfo")
    assert command.which("sinfo") == str(programs / "sinfo")

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from ctrain_runtime.cli import main as module
from ctrain_runtime.cli.main import RUN, RUNTIME_VERBS, Verb, main
from ctrain_runtime.errors import StoreError
from samples.programs import answer
from samples.runs import Bench

Does = Callable[[Callable[[argparse.Namespace], int]], list[Verb]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flag", type=int)
    parser.add_argument("--kind", choices=["small", "large"])
    parser.add_argument("--json", action="store_true")


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Does:
    """verb(function): the verb `do`, which calls it with its arguments (--flag, and what follows --)."""

    def make(function: Callable[[argparse.Namespace], int]) -> list[Verb]:
        does = argparse.Namespace(
            __doc__="Does it.",
            add_arguments=add_arguments,
            execute=function,
        )
        monkeypatch.setattr(module.importlib, "import_module", lambda _: does)
        return [Verb("do", RUN, "does it", "nowhere"), Verb("run", RUN, "runs", "nowhere", takes_command=True)]

    return make


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_the_overview_names_every_verb(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, argv) == 0
    said = capsys.readouterr().out
    assert all(f"  {verb.name} " in said and verb.help in said for verb in RUNTIME_VERBS)


@pytest.mark.parametrize("verb", [verb.name for verb in RUNTIME_VERBS])
def test_every_verb_has_help_with_a_description(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(RUNTIME_VERBS, [verb, "--help"])
    assert ended.value.code == 0
    usage, description = capsys.readouterr().out.split("\n\n", 2)[:2]
    assert usage.startswith((f"usage: ctrain {verb} [-h]", f"usage: ctrain {verb} [OPTIONS]"))
    assert description


def test_the_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.2.3")
    engine = tmp_path / "apptainer"
    engine.write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert main(RUNTIME_VERBS, ["--version"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "ctrain 1.2.3"
    assert f"engine  apptainer 1.4.5 ({engine})" in others
    assert [line.split()[0] for line in others if not line.startswith("commit")] == ["python", "engine"]


def test_the_version_where_the_engine_builds_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer(tmp_path, "singularity", "singularity-ce version 4.5.1\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(RUNTIME_VERBS, ["--version"]) == 0
    line = f"engine  singularity 4.5.1 ({tmp_path}/singularity), which only runs images"
    assert line in capsys.readouterr().out.splitlines()


def test_the_version_where_there_is_no_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(RUNTIME_VERBS, ["--version"]) == 0
    assert "engine  neither apptainer nor singularity is on PATH" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["rnu"], "ctrain: unknown command 'rnu'. Did you mean 'run'? Known: do, run"),
        (["--flag"], "ctrain: unknown command '--flag'. Known: do, run"),
        (["do", "--flag"], "ctrain: argument --flag: expected one argument. See: ctrain do --help"),
        (["do", "--flag", "x"], "ctrain: argument --flag: invalid int value: 'x'. See: ctrain do --help"),
        (
            ["do", "--flat", "1"],
            "ctrain: unrecognized arguments: --flat 1. Did you mean '--flag'? See: ctrain do --help",
        ),
        (["do", "x"], "ctrain: unrecognized arguments: x. See: ctrain do --help"),
        (["do", "--", "x"], "ctrain: ctrain do takes no arguments after --. See: ctrain do --help"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    verb: Does, argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(verb(lambda _: 0), argv) == 64
    assert capsys.readouterr() == ("", complaint + "\n")


def test_what_follows_the_first_dashes_is_the_programs(verb: Does) -> None:
    seen: list[argparse.Namespace] = []
    main(verb(lambda args: len(seen.append(args) or [])), ["run", "--flag", "1", "--", "a", "--flag", "--", "-h"])
    assert (seen[0].flag, seen[0].rest) == (1, ["a", "--flag", "--", "-h"])


def test_a_choice_that_is_none(verb: Does, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(verb(lambda _: 0), ["do", "--kind", "smal"]) == 64
    complaint = capsys.readouterr().err
    assert complaint.startswith("ctrain: argument --kind: invalid choice: 'smal' (choose from")
    assert complaint.endswith("). Did you mean 'small'? See: ctrain do --help\n")


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def fail(_: argparse.Namespace) -> int:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StoreError("x is no store", "Make one"), 76, "ctrain: x is no store. Make one\n"),
        (KeyboardInterrupt(), 130, "ctrain: ended by SIGINT\n"),
        (OSError(errno.ENOSPC, "full", "/a"), 75, "ctrain: no space left for /a. Free disk space and retry\n"),
        (OSError(errno.EDQUOT, "quota"), 75, "ctrain: no space left for a file. Free disk space and retry\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), 70, "ctrain: /a: Permission denied\n"),
        (OSError("odd"), 70, "ctrain: system: odd\n"),
    ],
)
def test_every_error_is_one_line_and_a_code(
    verb: Does, error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(verb(raising(error)), ["do"]) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_ctrl_c_does_and_afterwards_is_what_it_was(
    verb: Does, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before, left = signal.getsignal(number), []

    def wait(_: argparse.Namespace) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
            return 0
        finally:
            left.append("cleaned up")

    assert main(verb(wait), ["do"]) == 128 + number
    assert capsys.readouterr() == ("", f"ctrain: ended by {number.name}\n")
    assert (left, signal.getsignal(number)) == (["cleaned up"], before)


def test_with_json_an_error_is_an_object_on_stdout_too(verb: Does, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that reads stdout gets one object, whatever happens; also for options that do not exist."""
    error = StoreError("x is no store", "Make one")
    assert main(verb(raising(error)), ["do", "--json"]) == 76
    said = capsys.readouterr()
    assert json.loads(said.out) == {"error": "x is no store. Make one", "exit_code": 76}
    assert said.err == "ctrain: x is no store. Make one\n"
    assert main(verb(raising(error)), ["do", "--json", "--no-such"]) == 64
    assert json.loads(capsys.readouterr().out)["exit_code"] == 64


def test_what_the_program_gets_is_not_ctrains_json(verb: Does, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(verb(raising(StoreError("x"))), ["run", "--", "--json"]) == 76
    assert capsys.readouterr().out == ""


def test_a_package_that_is_not_installed_is_named(verb: Does, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(verb(raising(ModuleNotFoundError(name="requests.adapters"))), ["do"]) == 70
    said = capsys.readouterr().err
    what = "this command needs the Python package requests, which is not installed"
    assert said == f"ctrain: {what}. Run: {sys.executable} -m pip install requests\n"
    with pytest.raises(ModuleNotFoundError):
        main(verb(raising(ModuleNotFoundError(name="ctrain_builder.nowhere"))), ["do"])


def test_a_defect_of_ctrain_is_not_hidden(verb: Does) -> None:
    with pytest.raises(ZeroDivisionError):
        main(verb(lambda _: 1 // 0), ["do"])


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.ctrain("help", "exit-codes") as ctrain:
        assert ctrain.stdout
        ctrain.stdout.close()
        assert ctrain.stderr
        assert ctrain.stderr.read() == ""
    assert ctrain.returncode in (0, 141)


def test_a_verb_loads_only_its_own_module() -> None:
    """Start-up is what users feel: `ctrain --help` needs neither YAML nor argparse's subcommands."""
    show = "import sys; from ctrain_runtime.cli import main; main.main(main.RUNTIME_VERBS, []); print(*sys.modules)"
    environment = {"PYTHONPATH": str(Path(module.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", show], env=environment, capture_output=True, text=True, check=True)
    assert not {"yaml", "difflib", "ctrain_runtime.cli.run"} & set(done.stdout.split())

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.ending import Ending
from ctrain_runtime.run.notify import notifier, tell_of_end
from ctrain_runtime.run.record import Exit, Record
from samples.plans import LOCAL
from samples.programs import write_program
from samples.runs import Bench, StandIn, ended, submitted, wait_for

TELL = '#!/bin/sh\nprintf "%s|" "$@" "$CTRAIN_EVENT" "$CTRAIN_RUN" "$CTRAIN_MESSAGE" >>told\ncat >>told\nexit 3\n'


def test_words_are_words_and_the_program_has_its_path(tmp_path: Path) -> None:
    program = write_program(tmp_path / "tell", "#!/bin/sh\n")
    assert notifier("./tell 'a  b' $(x);y") == (str(program), "a  b", "$(x);y")
    assert notifier("sh")[0].endswith("/sh")
    assert notifier("") == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("./gone -x", "program ./gone not found. Name an executable"), ("a 'b", "cannot be split into words: No closing")],
)
def test_what_cannot_be_started_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        notifier(text)


@pytest.fixture
def told(tmp_path: Path) -> tuple[LaunchPlan, Record]:
    """A run that has ended, whose job.sh told nobody; the command writes to the file `told` and fails."""
    run = submitted(tmp_path / "one", StandIn(), **LOCAL)
    program = write_program(tmp_path / "tell", TELL)
    plan = dataclasses.replace(run.plan, notify=(str(program), "a;b"))
    return plan, dataclasses.replace(run.record, exit=Exit(143, "node failure", "scheduler", Ending.NODE_FAILURE))


def test_the_end_is_told_once(told: tuple[LaunchPlan, Record]) -> None:
    message = "run one ended: node failure"
    for _ in range(2):
        tell_of_end(*told)
        assert Path("told").read_text() == f"a;b|failed|one|{message}|{message}\n"


@pytest.mark.parametrize("program", ["/nowhere", "/bin/false"])
def test_a_command_that_fails_changes_nothing(told: tuple[LaunchPlan, Record], program: str) -> None:
    plan, record = told
    tell_of_end(dataclasses.replace(plan, notify=(program,)), record)
    tell_of_end(dataclasses.replace(plan, notify=(), run_directory="/nowhere"), record)
    tell_of_end(dataclasses.replace(plan, run_directory="/nowhere"), record)
    assert not Path("told").exists()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    write_program(tmp_path / "tell", TELL.replace("told", str(tmp_path / "told")))
    yield bench
    bench.end()


@pytest.mark.parametrize(("code", "event"), [(0, "ended"), (4, "failed")])
def test_job_sh_tells_of_start_and_end(bench: Bench, code: int, event: str) -> None:
    """As words, not as a line for a shell; that it fails, or the run, changes nothing for the other."""
    words = ("--launcher", "env", "--notify", "./tell 'x;$(touch seen)'", "--", "sh", "-c", f"exit {code}")
    assert ended(bench.run(*words))[0] == code
    file = bench.folder / "told"
    wait_for(lambda: file.exists() and file.read_text().count("\n") == 2)
    lines = sorted(line.split("|")[:3] for line in file.read_text().splitlines())
    assert lines == sorted([["x;$(touch seen)", "started", "one"], ["x;$(touch seen)", event, "one"]])
    assert f"with exit code {code}" in file.read_text()
    assert not list(bench.folder.rglob("seen"))


def test_a_command_that_hangs_holds_no_run_up(bench: Bench) -> None:
    write_program(bench.folder / "tell", "#!/bin/sh\nexec sleep 600\n")
    assert ended(bench.run("--launcher", "env", "--notify", "./tell", "--", "true"))[0] == 0
    assert bench.record()["exit"]["ending"] == "completed"

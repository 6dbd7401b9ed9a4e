from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.facts import Cluster, Engine
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run import session
from ctrain_runtime.run.session import Exit, Outcome
from ctrain_runtime.schedulers import protocol, start
from ctrain_runtime.schedulers.handle import Status
from samples.plans import LOCAL, a_job, a_manifest, a_plan, an_image, some_facts
from samples.programs import SYSTEM, install

RUNNING = Status("running")


class Seen:
    """A View that keeps what it is told."""

    def __init__(self) -> None:
        self.text = ""
        self.records: list[dict[str, Any]] = []
        self.said: list[Any] = []

    def submitted(self, name: str) -> None:
        self.said.append(name)

    def status(self, status: protocol.Status) -> None:
        self.said.append(status)

    def output(self, text: str) -> None:
        self.text += text

    def metrics(self, records: list[dict[str, Any]]) -> None:
        self.records += records

    def cancelling(self, name: str) -> None:
        self.said.append(f"cancelling {name}")


class Script:
    """A Handle that plays a script: each question is answered by the next status, or by what it raises."""

    name = "job 7"

    def __init__(self, answers: Iterator[Callable[[], Status]]) -> None:
        self._answers = answers
        self.cancelled = 0

    def status(self) -> Status:
        return next(self._answers)()

    def cancel(self) -> None:
        self.cancelled += 1


# A session ends with the last file of its run, a moment before the bash that wrote it does.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Two ranks on Slurm; only a Script can start it."""
    plan = a_plan(nodes=2, ranks_per_node=1, run_directory=tmp_path / "run")
    return Launch(plan, ("sbatch", "job.sh"), {})


@pytest.fixture
def play(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Outcome, Script, Seen]]:
    """play(answers, files): run `launch`, whose job leaves `files` behind before the last answer."""
    for pause in ("LOOK", "ASK", "SETTLE"):
        monkeypatch.setattr(session, pause, 0.0)

    def call(*answers: Any, **files: str) -> tuple[Outcome, Script, Seen]:
        run = Path(launch.plan.run_directory)

        def answer(status: Any, last: bool) -> Callable[[], Status]:
            def give() -> Status:
                for name, text in files.items() if last else ():
                    (run / name.replace("__", "/")).write_text(text)
                if isinstance(status, BaseException):
                    raise status
                assert isinstance(status, Status)
                return status

            return give

        handle = Script(answer(status, number == len(answers)) for number, status in enumerate(answers, 1))
        monkeypatch.setattr(session.start, "start", lambda _: handle)
        view = Seen()
        return session.run(launch, view), handle, view

    return call


GOOD = {"ranks__0": "start 100.0 gpu01\nend 110.0 0\n", "ranks__1": "start 99.0 gpu02\nend 110.0 0\n"}
KILLED = {"ranks__0": "start 100.0 gpu01\nend 112.0 143\n", "ranks__1": "start 99.0 gpu02\nend 111.0 137\n"}
GONE = {**GOOD, "ranks__1": "start 99.0 gpu02\n"}


@pytest.mark.parametrize(
    ("last", "files", "code", "reason", "failed"),
    [
        ("COMPLETED", {**GOOD, "exit_code": "0\n"}, 0, "completed", None),
        ("COMPLETED", {"ranks__0": GOOD["ranks__0"], "exit_code": "0\n"}, 1, "only 1 of 2 ranks ever started", None),
        ("COMPLETED", {"exit_code": "0\n"}, 1, "only 0 of 2 ranks ever started", None),
        ("FAILED", {**KILLED, "exit_code": "143\n"}, 137, "rank 1 on gpu02 ended first: signal 9 (killed)", 1),
        ("FAILED", {**GONE, "exit_code": "137\n"}, 137, "rank 1 on gpu02 ended first: vanished (its node failed", 1),
        ("FAILED", {"exit_code": "1\n", "logs__job.log": "a\nsrun: error: no\n\n"}, 1, "srun: error: no", None),
        ("FAILED", {"exit_code": ""}, 1, "the job ended as FAILED", None),
        ("CANCELLED", GONE, 1, "rank 1 on gpu02 ended first: vanished (its node failed", 1),
        ("CANCELLED", {}, 1, "the job ended as CANCELLED", None),
        ("TIMEOUT", KILLED, 143, "time limit reached", None),
        ("NODE_FAIL", GONE, 143, "a node failed", None),
        ("OUT_OF_MEMORY", KILLED, 143, "out of memory (Slurm's limit)", None),
        ("no longer known to Slurm", {}, 1, "the job ended as no longer known to Slurm", None),
    ],
)
def test_how_a_run_ended(
    play: Callable[..., tuple[Outcome, Script, Seen]],
    last: str,
    files: dict[str, str],
    code: int,
    reason: str,
    failed: Optional[int],
) -> None:
    outcome, _, _ = play(Status("waiting", "Priority"), RUNNING, Status("ended", last), **files)
    ended = outcome.record.exit
    assert ended is not None
    assert ended.code == code
    assert ended.reason.startswith(reason)
    assert (outcome.failed.number if outcome.failed else None) == failed


def test_the_record(launch: Launch, play: Callable[..., tuple[Outcome, Script, Seen]]) -> None:
    outcome, _, _ = play(Status("ended", "COMPLETED"), **GOOD, exit_code="0\n")
    record = json.loads((Path(launch.plan.run_directory) / "record.json").read_text())
    assert record == json.loads(json.dumps(dataclasses.asdict(outcome.record)))
    assert {key: value for key, value in record.items() if key not in ("submitted", "end")} == {
        "run": "run",
        "job": "digits",
        "site": "neuron",
        "image": {"name": "pytorch", "version": "24.12-hd-r3", "digest": "sha256:9f2c41d0a7e3"},
        "layers": [],
        "command": ["python", "train.py"],
        "nodes": ["gpu01", "gpu02"],
        "world_size": 2,
        "launcher": "mpi",
        "scheduled_as": "job 7",
        "start": "1970-01-01T00:01:39+00:00",
        "exit": {"code": 0, "reason": "completed"},
    }


def test_what_a_view_is_told(play: Callable[..., tuple[Outcome, Script, Seen]]) -> None:
    waiting, ended = Status("waiting", "Priority"), Status("ended", "COMPLETED")
    files = {"logs__rank0.log": "epoch 1\n", "metrics.jsonl": '{"step": 1}\n'}
    _, _, view = play(waiting, RUNNING, ended, **GOOD, **files, exit_code="0\n")
    assert view.said == [
        "job 7",
        *(protocol.Status(*state) for state in (("waiting", "Priority"), ("running",), ("ended",))),
    ]
    assert (view.text, view.records) == ("epoch 1\n", [{"step": 1}])


def test_ctrl_c_cancels_and_the_record_says_so(play: Callable[..., tuple[Outcome, Script, Seen]]) -> None:
    outcome, handle, view = play(RUNNING, KeyboardInterrupt(), RUNNING, Status("ended", "CANCELLED"), **KILLED)
    assert outcome.record.exit == Exit(130, "cancelled")
    assert (handle.cancelled, outcome.failed) == (1, None)
    assert "cancelling job 7" in view.said


def test_ctrl_c_after_the_end_changes_nothing(play: Callable[..., tuple[Outcome, Script, Seen]]) -> None:
    outcome, _, _ = play(KeyboardInterrupt(), Status("ended", "COMPLETED"), **GOOD, exit_code="0\n")
    assert outcome.record.exit == Exit(0, "completed")


def test_a_second_ctrl_c_waits_no_longer(play: Callable[..., tuple[Outcome, Script, Seen]]) -> None:
    outcome, handle, _ = play(RUNNING, KeyboardInterrupt(), RUNNING, KeyboardInterrupt())
    assert outcome.record.exit == Exit(130, "cancelled")
    assert handle.cancelled == 1


def test_a_cancelled_run_that_does_not_end_is_left_alone(
    play: Callable[..., tuple[Outcome, Script, Seen]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PATIENCE", 0.0)
    outcome, _, _ = play(KeyboardInterrupt(), RUNNING, RUNNING, RUNNING)
    assert outcome.record.exit == Exit(130, "cancelled")


def test_a_job_that_the_scheduler_refuses_has_a_record(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Launch) -> None:
        raise SchedulerError("Slurm refused the job: no", "Its script is job.sh")

    monkeypatch.setattr(session.start, "start", refuse)
    with pytest.raises(SchedulerError):
        session.run(launch, Seen())
    record = json.loads((Path(launch.plan.run_directory) / "record.json").read_text())
    assert record["exit"] == {"code": 72, "reason": "Slurm refused the job: no"}
    assert record["end"]


def local(folder: Path, command: str) -> Launch:
    """Two ranks of a shell command on this machine, in the fake engine."""
    install(folder / "bin", "apptainer", "mpirun")
    plan = a_plan(
        site=LOCAL["site"],
        job=a_job(command=("bash", "-c", command), workdir=str(folder)),
        image=an_image(layers=a_manifest().layers[:1]),
        facts=some_facts(cluster=Cluster(), engine=Engine("apptainer", str(folder / "bin/apptainer"), "1.4.5")),
        ranks_per_node=2,
        run_directory=folder / "run",
    )
    return start.prepare(plan)


@pytest.fixture
def fakes_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{SYSTEM}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_real_run(fakes_on_path: Path) -> None:
    view = Seen()
    command = 'echo "I am $RANK of $WORLD_SIZE"; echo "{\\"step\\": $RANK}" >>"$CTRAIN_RUN_DIR/metrics.jsonl"'
    outcome = session.run(local(fakes_on_path, command), view)
    assert outcome.record.exit == Exit(0, "completed")
    assert view.text == "I am 0 of 2\n"
    assert sorted(record["step"] for record in view.records) == [0, 1]
    assert (fakes_on_path / "run/logs/rank1.log").read_text() == "I am 1 of 2\n"


def test_a_real_run_whose_first_failing_rank_is_named(fakes_on_path: Path) -> None:
    script = """\
ready=$CTRAIN_RUN_DIR/ready
if [ "$RANK" = 0 ]; then touch "$ready"; exec sleep 60; fi
until [ -e "$ready" ]; do :; done
exit 3
"""
    outcome = session.run(local(fakes_on_path, script), Seen())
    assert outcome.record.exit is not None
    assert outcome.record.exit.code == 3
    assert outcome.record.exit.reason.endswith("ended first: exit code 3")
    assert outcome.failed is not None
    assert outcome.failed.number == 1
    assert (fakes_on_path / "run/ranks/0").read_text().endswith(" 143\n")


def test_a_real_run_of_which_only_some_ranks_start(fakes_on_path: Path) -> None:
    mpirun = fakes_on_path / "bin/mpirun"
    launch = local(fakes_on_path, "true")
    mpirun.write_text(mpirun.read_text().replace("size=$2", "size=$2; FAKE_MPIRUN_STARTS=1"))
    assert session.run(launch, Seen()).record.exit == Exit(1, "only 1 of 2 ranks ever started")


def test_a_real_run_whose_engine_fails(fakes_on_path: Path) -> None:
    launch = local(fakes_on_path, "true")
    (fakes_on_path / "bin/apptainer").write_text("#!/bin/bash\necho 'FATAL: no such image' >&2\nexit 255\n")
    assert session.run(launch, Seen()).record.exit == Exit(255, "FATAL: no such image")

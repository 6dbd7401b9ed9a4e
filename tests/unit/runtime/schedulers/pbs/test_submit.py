from __future__ import annotations

import contextlib
import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import SchedulerError, UnansweredSubmission
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.schedulers import submission
from ctrain_runtime.schedulers.pbs import submit
from ctrain_runtime.schedulers.pbs.scheduler import Pbs
from samples.plans import a_plan, changed
from samples.programs import answer, write_program
from samples.recordings import pbs, pbs_errors

ERRORS = pbs_errors()


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    run = tmp_path / "run"
    run.mkdir()
    return Launch(a_plan(run_directory=run), ("qsub", "-f", f"{run}/job.sh"), {"job.sh": "#!/bin/bash\n"})


def test_submit(programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    show = "${PBS_DPREFIX-unset} ${PBS_JOBID-unset} ${PBS_SERVER-unset}"
    write_program(programs / "qsub", f'#!/bin/bash\necho "$PWD $* {show}" >called\necho 41.pbs-01.example\n')
    monkeypatch.setenv("PBS_DPREFIX", "#OTHER")
    monkeypatch.setenv("PBS_JOBID", "7.outer")
    monkeypatch.setenv("PBS_SERVER", "pbs-01")
    run = launch.plan.run_directory
    assert submit.submit(launch) == "41.pbs-01.example"
    assert Path(run, "called").read_text() == f"{run} -f {run}/job.sh unset unset pbs-01\n"


def job_id_in(text: str) -> str:
    return submission.parse_job_id(text, submit.JOB_ID, "qsub")


def test_ids_among_banners() -> None:
    assert job_id_in(pbs("qsub.out")) == "2.login01"
    assert job_id_in("Welcome to 7.example!\nproject x: 3.5 hours\n12.pbs \r\n") == "12.pbs"
    with pytest.raises(SchedulerError, match=r"^qsub printed no job id, but 'maintenance'"):
        job_id_in("maintenance\n")


@given(st.text())
def test_any_output_has_an_id_or_none(text: str) -> None:
    with contextlib.suppress(SchedulerError):
        assert job_id_in(text) in text


@pytest.mark.parametrize("name", [name for name in ERRORS if name.startswith("qsub-")])
def test_refusals_are_one_clear_line(programs: Path, launch: Launch, name: str) -> None:
    code, error = ERRORS[name]
    answer(programs, "qsub", error=error, code=code)
    with pytest.raises(SchedulerError) as caught:
        submit.submit(launch)
    assert caught.value.message.startswith("qsub rejected the job: ")
    assert "\n" not in str(caught.value)
    assert "usage" not in str(caught.value)
    assert "qsub: qsub" not in str(caught.value)


def test_a_submission_that_hangs_but_was_accepted(
    programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    write_program(programs / "qsub", "#!/bin/bash\nexec sleep 5\n")
    answer(programs, "qselect", "")
    with pytest.raises(
        UnansweredSubmission, match=r"^no answer to the submission: qsub timed out after 0.2 s; the job"
    ):
        submit.submit(launch)
    write_queue(programs, **{"8.s": f"login01:{launch.plan.run_directory}/logs/scheduler.log"})
    assert submit.submit(launch) == "8.s"


def write_queue(programs: Path, **outputs: str) -> None:
    """qselect and qstat of jobs with these paths for their output."""
    answer(programs, "qselect", "".join(f"{job}\n" for job in outputs))
    cases = "".join(
        f'  *" {job}") printf \'%s\\n\' \'{{"Jobs": {{"{job}": {{"Output_Path": "{path}"}}}}}}\' ;;\n'
        for job, path in outputs.items()
    )
    write_program(programs / "qstat", f'#!/bin/bash\ncase "$*" in\n{cases}esac\n')


def test_the_newest_job_in_the_run_directory_is_found(programs: Path, launch: Launch) -> None:
    log = f"{launch.plan.run_directory}/logs/scheduler.log"
    write_queue(programs, **{"9.s": f"h:{log}", "12.s": f"h:{log}", "100.s": "h:/other/digits-1/logs/scheduler.log"})
    assert submit.find(launch.plan) == "12.s"
    assert (programs / "qselect.calls").read_text() == "-x -N digits-1\n".replace("digits-1", launch.plan.run)
    write_queue(programs)
    assert submit.find(launch.plan) is None


def test_a_search_that_gets_no_answer(programs: Path, launch: Launch) -> None:
    answer(
        programs, "qselect", error="Connection refused\nqselect: cannot connect to server x (errno=15010)\n", code=255
    )
    with pytest.raises(SchedulerError, match=r"^cannot look up the job of run run: Connection refused; cannot connect"):
        submit.find(launch.plan)


# --- cancelling

PLAN = changed(a_plan(run_directory=Path("/home/pbsuser/t")), cluster="login01")


def own_job(programs: Path) -> None:
    """PBS has the job that is to be cancelled."""
    answer(programs, "qstat", json.dumps({"Jobs": {"2.login01": {"Output_Path": "login01:/home/pbsuser/t/logs/x"}}}))


def test_a_job_that_has_ended_need_not_be_cancelled(programs: Path) -> None:
    own_job(programs)
    for name in ("qdel-unknown", "qdel-finished"):
        code, error = ERRORS[name]
        answer(programs, "qdel", error=error, code=code)
        submit.cancel("2.login01", PLAN)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (*ERRORS["qdel-server-stopped"], "Connection refused; Couldn't connect to cluster: login01"),
        (159, "qdel: Unauthorized Request  2.login01\n", "Unauthorized Request  2.login01"),
    ],
)
def test_a_job_that_cannot_be_cancelled(programs: Path, code: int, error: str, message: str) -> None:
    own_job(programs)
    answer(programs, "qdel", error=error, code=code)
    with pytest.raises(SchedulerError) as caught:
        submit.cancel("2.login01", PLAN)
    problem = "cannot cancel job 2.login01; it may still be running"
    assert str(caught.value) == f"{problem}: {message}. Run: qdel 2.login01"


def test_a_qdel_that_hangs(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "CANCEL_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    own_job(programs)
    write_program(programs / "qdel", "#!/bin/bash\nexec sleep 5\n")
    with pytest.raises(SchedulerError, match="qdel timed out"):
        submit.cancel("2.login01", PLAN)


# --- values of the caller's environment


def test_passed_values_are_in_a_file_for_their_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "it's\n$(secret)")
    monkeypatch.delenv("UNSET", raising=False)
    plan = a_plan(run_directory=tmp_path, env={"TOKEN": None, "UNSET": None})
    submit.write_environment(plan)
    path = tmp_path / ".environment"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "export TOKEN='it'\"'\"'s\n$(secret)'"
    submit.remove_environment(plan)
    submit.remove_environment(plan)
    assert not path.exists()
    submit.write_environment(a_plan(run_directory=tmp_path))
    assert not path.exists()


def test_a_job_that_may_have_been_queued_keeps_its_values(
    programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "x")
    plan = a_plan(run_directory=Path(launch.plan.run_directory), env={"TOKEN": None})
    answer(programs, "qsub", error="qsub: End of File\n", code=1)
    answer(programs, "qselect", "")
    with pytest.raises(UnansweredSubmission):
        Pbs().submit(Launch(plan, launch.argv, {}))
    assert Path(plan.run_directory, ".environment").exists()


def test_nothing_stays_of_a_job_that_was_refused(
    programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "x")
    plan = a_plan(run_directory=Path(launch.plan.run_directory), env={"TOKEN": None})
    answer(programs, "qsub", error="qsub: Unknown queue\n", code=170)
    with pytest.raises(SchedulerError):
        Pbs().submit(Launch(plan, launch.argv, {}))
    assert list(Path(plan.run_directory).iterdir()) == []

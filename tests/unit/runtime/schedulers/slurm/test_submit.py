from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.errors import SchedulerError, UnansweredSubmission
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.schedulers import submission
from ctrain_runtime.schedulers.slurm import submit
from samples.plans import a_plan, changed
from samples.programs import answer, write_program
from samples.recordings import VERSIONS, jobs, record, recorded, two_clusters


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    run = tmp_path / "run"
    run.mkdir()
    return Launch(a_plan(run_directory=run), ("sbatch", "--parsable", f"{run}/job.sh"), {"job.sh": "#!/bin/bash\n"})


def test_submit(programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    show = "${SBATCH_PARTITION-unset} ${SLURM_CPUS_PER_TASK-unset} ${SLURM_CONF-unset}"
    write_program(programs / "sbatch", f'#!/bin/bash\necho "$PWD $* {show}" >called\necho 41873\n')
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    run = launch.plan.run_directory
    assert submit.submit(launch) == "41873"
    assert Path(run, "called").read_text() == f"{run} --parsable {run}/job.sh unset unset /etc/slurm.conf\n"


def test_sbatch_inherits_file_descriptors(programs: Path, launch: Launch, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        number = lock.fileno()
        write_program(programs / "sbatch", f"#!/bin/bash\necho held >&{number}\necho 5\n")
        assert submit.submit(launch, pass_fds=(number,)) == "5"
    assert (tmp_path / "lock").read_text() == "held\n"


def test_sbatch_is_not_in_the_session_of_the_terminal(programs: Path, launch: Launch) -> None:
    write_program(programs / "sbatch", "#!/bin/bash\nread -r _ _ _ _ _ session _ </proc/$$/stat\necho $session\n")
    assert int(submit.submit(launch)) != os.getsid(0)


def job_id_in(text: str) -> str:
    return submission.parse_job_id(text, submit.JOB_ID, "sbatch")


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_job_ids(version: str) -> None:
    text = record(version, "sbatch-parsable.out")
    assert job_id_in(text) == text.strip()


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("41873;neuron\n", "41873"),
        ("Welcome to 2026!\n2026\n 12 nodes are down\n41873\n", "41873"),
        ("41873\r\nYour project has 12 hours left\n", "41873"),
    ],
)
def test_job_ids_between_banners(text: str, job_id: str) -> None:
    assert job_id_in(text) == job_id


@pytest.mark.parametrize(("text", "shown"), [("", "'nothing'"), ("Welcome\nto 2026\n", "'to 2026'")])
def test_a_banner_is_no_job_id(text: str, shown: str) -> None:
    expected = f"sbatch printed no job id, but {shown}"
    with pytest.raises(SchedulerError, match=f"^{re.escape(expected)}$"):
        job_id_in(text)


REFUSALS = {
    "sbatch-bad-partition.err": "invalid partition specified: nosuch; Invalid partition name specified",
    "sbatch-bad-gres-type.err": "Requested node configuration is not available",
    "dead-sbatch-wrap-hostname.err": "Unable to contact slurm controller (connect failure)",
    "enforce.sbatch-parsable-time-over.err": "Requested time limit is invalid (missing or exceeds some limit)",
}
RECORDED_REFUSALS = [(version, name) for name in REFUSALS for version in recorded(name)]


@pytest.mark.parametrize(("version", "name"), RECORDED_REFUSALS)
def test_a_rejection_has_slurms_words(programs: Path, launch: Launch, version: str, name: str) -> None:
    answer(programs, "sbatch", error=record(version, name), code=1)
    with pytest.raises(SchedulerError) as caught:
        submit.submit(launch)
    script = f"{launch.plan.run_directory}/job.sh"
    assert str(caught.value) == f"sbatch rejected the job: {REFUSALS[name]}. Script: {script}"
    assert caught.value.exit_code == 72


@pytest.mark.parametrize(
    ("sbatch", "timeout", "problem"),
    [
        ("exec /bin/sleep 60", 0.1, "sbatch timed out after 0.1 s"),
        ("echo Welcome", 60, "sbatch printed no job id, but 'Welcome'"),
    ],
)
def test_a_submission_without_an_answer_may_have_worked(
    programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch, sbatch: str, timeout: float, problem: str
) -> None:
    monkeypatch.setattr(submission, "TIMEOUT_SECONDS", timeout)
    write_program(programs / "sbatch", f"#!/bin/bash\n{sbatch}\n")
    expected = f"no answer to the submission: {problem}; the job may have been queued"
    with pytest.raises(UnansweredSubmission) as caught:
        submit.submit(launch)
    assert caught.value.message == expected
    attach = f"ctrain attach {launch.plan.run_directory}"
    assert caught.value.hint == f"Check with: squeue --me --name=run; if it was, watch it with: {attach}"
    answer(programs, "squeue", f"40|{launch.plan.run_directory}\n")
    assert submit.submit(launch) == "40"


@pytest.mark.parametrize(
    "error",
    [
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (receive failure)",
    ],
)
def test_an_error_after_the_request_was_sent_is_no_refusal(programs: Path, launch: Launch, error: str) -> None:
    answer(programs, "sbatch", error=f"{error}\n", code=1)
    answer(programs, "squeue")
    with pytest.raises(UnansweredSubmission, match=r"^no answer to the submission: (Socket|Zero|Unable) .*; the job"):
        submit.submit(launch)
    answer(programs, "squeue", f"40|{launch.plan.run_directory}\n")
    assert submit.submit(launch) == "40"


def test_an_sbatch_that_was_killed_may_have_queued_the_job(programs: Path, launch: Launch) -> None:
    write_program(programs / "sbatch", "#!/bin/bash\nkill -KILL $$\n")
    with pytest.raises(UnansweredSubmission, match=r"^no answer to the submission: sbatch was killed; the job may"):
        submit.submit(launch)


@pytest.mark.parametrize("version", VERSIONS)
def test_check_queues_nothing(programs: Path, launch: Launch, tmp_path: Path, version: str) -> None:
    error = record(version, "sbatch-test-only.err")
    write_program(programs / "sbatch", f'#!/bin/bash\necho "$*" >called\n/bin/cat >script\necho "{error}" >&2\n')
    submit.check(launch)
    assert (tmp_path / "called").read_text() == "--parsable --test-only\n"
    assert (tmp_path / "script").read_text() == "#!/bin/bash\n"


@pytest.mark.parametrize(("version", "name"), RECORDED_REFUSALS)
def test_check_tells_what_slurm_would_refuse(programs: Path, launch: Launch, version: str, name: str) -> None:
    answer(programs, "sbatch", error=record(version, name), code=1)
    answer(programs, "scontrol", record(version, "show-node-oneline.out"))
    with pytest.raises(SchedulerError, match=rf"^sbatch rejected the job: {re.escape(REFUSALS[name])}\. Change the"):
        submit.check(launch)


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_job_that_waits_for_nodes_is_not_refused(programs: Path, launch: Launch, version: str) -> None:
    """The test refuses it while they are down; sbatch has queued it (sbatch-node-down.rc: 0)."""
    other = dataclasses.replace(launch, plan=changed(launch.plan, partition="skl"))
    answer(programs, "sbatch", error=record(version, "down.sbatch-test-only.err"), code=1)
    answer(programs, "scontrol", record(version, "down.show-node.out"))
    submit.check(launch)
    with pytest.raises(SchedulerError, match=r"^sbatch rejected the job: Requested node configuration is not"):
        submit.check(other)  # which has no such node
    answer(programs, "scontrol", record(version, "show-node-oneline.out"))
    with pytest.raises(SchedulerError, match=r"^sbatch rejected the job: Requested node configuration is not"):
        submit.check(launch)


def test_a_check_without_an_answer_is_no_refusal(
    programs: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "CHECK_TIMEOUT_SECONDS", 0.05)
    write_program(programs / "sbatch", "#!/bin/bash\nexec /bin/sleep 60\n")
    submit.check(launch)


def test_find_the_job_of_a_run(programs: Path, launch: Launch, tmp_path: Path) -> None:
    run = Path(launch.plan.run_directory)
    (tmp_path / "link").symlink_to(tmp_path)
    calls = answer(programs, "squeue", f"38|{run}\n41|/elsewhere/run\n40|{tmp_path}/link/run\n9|{run}\n")
    assert submit.find(launch.plan) == "40"
    assert calls.read_text() == "--me --noheader --states=all --name=run --format=%A|%Z\n"


def test_a_run_without_a_job(programs: Path, launch: Launch) -> None:
    answer(programs, "squeue", "41|/elsewhere/run\n")
    assert submit.find(launch.plan) is None


def test_a_job_that_left_the_queue_is_in_the_accounting(programs: Path, launch: Launch) -> None:
    answer(programs, "squeue")
    calls = answer(programs, "sacct", f"41|/elsewhere/run\n40|{launch.plan.run_directory}\n")
    assert submit.find(launch.plan) == "40"
    assert "--name=run --starttime=now-30days --format=JobID,WorkDir\n" in calls.read_text()


def test_a_run_of_another_cluster_is_looked_up_there(programs: Path, launch: Launch) -> None:
    two_clusters(programs, "24.11.5")
    calls = answer(programs, "squeue")
    assert submit.find(changed(launch.plan, cluster="other")) is None
    assert calls.read_text().startswith("-M other --me ")
    answer(programs, "squeue", error="squeue: error: No cluster 'other' known by database.\n", code=1)
    with pytest.raises(SchedulerError, match="No cluster 'other' known"):
        submit.find(changed(launch.plan, cluster="other"))


def test_a_queue_that_cannot_be_read(programs: Path, launch: Launch) -> None:
    answer(programs, "squeue", error="slurm_load_jobs error: Unable to contact slurm controller\n", code=1)
    with pytest.raises(SchedulerError, match=r"^cannot look up the job of run run: slurm_load_jobs error: Unable to"):
        submit.find(launch.plan)
    (programs / "squeue").unlink()
    with pytest.raises(SchedulerError, match=r"^cannot look up the job of run run: squeue cannot be started"):
        submit.find(launch.plan)


# The jobs that were recorded, as those of a run.
PLAN = changed(a_plan(run_directory=Path("/home/alice")), cluster="lab")
RUNNING, STRANGER = (
    jobs("24.11.5")["RUNNING"].replace("/home/alice", path) for path in ("/home/alice", "/home/alice/other")
)


def test_cancel(programs: Path) -> None:
    two_clusters(programs, "24.11.5", here=RUNNING)
    calls = answer(programs, "scancel")
    submit.cancel("37", PLAN)
    assert calls.read_text() == "37\n"


def test_a_job_of_another_cluster_is_cancelled_there(programs: Path) -> None:
    two_clusters(programs, "24.11.5", here=STRANGER, there=RUNNING)
    calls = answer(programs, "scancel")
    submit.cancel("37", changed(PLAN, cluster="other"))
    assert calls.read_text() == "-M other 37\n"


@pytest.mark.parametrize(
    ("cluster", "here", "complaint"),
    [
        ("lab", STRANGER, ""),  # numbers began anew: the run's job has ended
        ("lab", "", ""),
        ("other", STRANGER, "its job belongs to cluster other. Look from a login node of that cluster"),
        ("other", "", "its job belongs to cluster other. Look from a login node of that cluster"),
        ("", STRANGER, "Slurm has no job of this run with that number here, and the record names no cluster."),
        ("", "", "Slurm has no job of this run with that number here, and the record names no cluster."),
    ],
)
def test_the_job_of_a_stranger_is_never_cancelled(programs: Path, cluster: str, here: str, complaint: str) -> None:
    two_clusters(programs, "24.11.5", here=here)
    calls = answer(programs, "scancel")
    if complaint:
        with pytest.raises(SchedulerError, match=rf"^cannot cancel job 37; it may still be running: {complaint}"):
            submit.cancel("37", changed(PLAN, cluster=cluster))
    else:
        submit.cancel("37", changed(PLAN, cluster=cluster))
    assert not calls.exists()


def test_without_an_answer_nothing_is_cancelled(programs: Path) -> None:
    answer(programs, "scontrol", error=record("24.11.5", "dead-scontrol-show-job-1.err"), code=1)
    calls = answer(programs, "scancel")
    with pytest.raises(SchedulerError, match=r"may still be running: Slurm does not answer \(.*\)\. Run: scancel 37$"):
        submit.cancel("37", PLAN)
    assert not calls.exists()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("scancel-not-mine.err", 210, r"Kill job error on job id \d+: Access/permission denied"),
        ("dead-scancel-1.err", 8, r"Kill job error on job id 1: Unable to contact slurm controller"),
    ],
)
def test_a_job_that_cannot_be_cancelled(programs: Path, version: str, name: str, code: int, why: str) -> None:
    two_clusters(programs, version, here=RUNNING)
    answer(programs, "scancel", error=record(version, name), code=code)
    with pytest.raises(
        SchedulerError, match=rf"^cannot cancel job 37; it may still be running: {why}.*Run: scancel 37$"
    ):
        submit.cancel("37", PLAN)


def test_a_scancel_that_hangs(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "CANCEL_TIMEOUT_SECONDS", 0.05)
    two_clusters(programs, "24.11.5", here=RUNNING)
    write_program(programs / "scancel", "#!/bin/bash\nexec /bin/sleep 60\n")
    with pytest.raises(SchedulerError, match=r"it may still be running: scancel timed out after 0.05 s"):
        submit.cancel("37", PLAN)


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    submit.parse_queue(text, "/x")
    submit.parse_queue(f"1|{text}", "/x")
    with contextlib.suppress(SchedulerError):
        assert job_id_in(text).isdigit()

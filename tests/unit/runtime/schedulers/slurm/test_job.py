from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, OutOfMemory, Status
from ctrain_runtime.schedulers.slurm import job, ownership
from samples.plans import a_plan, changed
from samples.programs import answer, write_program
from samples.recordings import VERSIONS, collection, jobs, record, recorded, two_clusters

# The state of a job when it was recorded, where the record's name does not begin with it.
RECORDED_AS = {
    "REQUEUED": "PENDING",
    "REQUEUE_HOLD": "PENDING",
    "NODE_FAIL-requeue": "PENDING",
    "PENDING-nodes-down": "COMPLETED",  # the nodes had come back at once
    "oom-sampler": "COMPLETED",
    "oom-sampler-batch": "FAILED",
    "scancel-b-KILL": "FAILED",
}
ENDED = {
    "CANCELLED": Outcome.CANCELLED,
    "COMPLETED": Outcome.COMPLETED,
    "FAILED": Outcome.FAILED,
    "NODE_FAIL": Outcome.NODE_FAILURE,
    "TIMEOUT": Outcome.TIMEOUT,
}
JOBS = [pytest.param(name, line, id=f"{v}-{name}") for v in VERSIONS for name, line in jobs(v).items()]


@pytest.mark.parametrize(("name", "line"), JOBS)
def test_every_recorded_state_of_a_job(name: str, line: str) -> None:
    state = RECORDED_AS.get(name, name.split("-")[0])
    status = job.parse_status(line)
    if state in ENDED:
        assert status == Status("ended", state, ENDED[state])
    elif state in ("PENDING", "SPECIAL_EXIT"):
        assert status.phase == "waiting"
        assert f"Reason={status.word} " in line
        assert f"StartTime={status.starts_at or 'Unknown'} " in line
    else:
        assert status == Status("running", "" if state in ("RUNNING", "COMPLETING") else state)


def test_every_state_was_recorded_in_every_version() -> None:
    for version in VERSIONS:
        assert {name.split("-")[0] for name in jobs(version)} >= {*ENDED, "PENDING", "RUNNING", "COMPLETING"} - (
            {"NODE_FAIL"} if version == "22.05.8" else set()
        )


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("DEADLINE", Outcome.TIMEOUT),
        ("PREEMPTED", Outcome.PREEMPTED),
        ("OUT_OF_MEMORY", Outcome.OUT_OF_MEMORY),
        ("BOOT_FAIL", Outcome.NEVER_STARTED),
        ("LAUNCH_FAILED", Outcome.NEVER_STARTED),
        ("REVOKED", Outcome.CANCELLED),
    ],
)
def test_ends_that_could_not_be_recorded(state: str, outcome: Outcome) -> None:
    line = jobs("24.11.5")["FAILED-3"].replace("JobState=FAILED", f"JobState={state}")
    assert job.parse_status(line) == Status("ended", state, outcome)


def test_what_scontrol_never_printed_counts_as_running() -> None:
    assert job.parse_status("JobId=1 JobState=STAGE_OUT Reason=None") == Status("running", "STAGE_OUT")
    assert job.parse_status("") == Status("running", "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_whose_log_cannot_be_opened(version: str) -> None:
    status = job.parse_status(record(version, "bad-output.show-job.out"))
    assert (status.outcome, status.word) == (Outcome.NEVER_STARTED, "FAILED")
    assert "Choose a directory that all nodes share: --runs DIR" in status.note


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_waits_for_somebody(version: str) -> None:
    assert (
        job.parse_status(jobs(version)["PENDING-Held"]).note == "the job does not start until it is changed or released"
    )
    assert job.parse_status(jobs(version)["PENDING-Resources"]).note == ""


# The jobs that were recorded, as those of a run.
PLAN = changed(a_plan(run_directory=Path("/home/alice")), cluster="lab")


TEXTS = st.lists(
    st.sampled_from(["JobState=COMPLETED", "Reason=None", "StartTime=N/A", "ExitCode=0:53", "UserId=x(0)", " ", "a"])
    | st.text(
        st.characters(exclude_characters="\n\r\x1c\x1d\x1e\x85\u2028\u2029", exclude_categories=["Cs"]), max_size=8
    )
).map(" ".join)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["RUNNING", "PENDING-Priority", "FAILED-3", "CANCELLED"])
@given(title=TEXTS, comment=TEXTS)
def test_what_users_write_is_no_state(version: str, name: str, title: str, comment: str) -> None:
    line = jobs(version)[name]
    before, _, rest = line.partition(" JobName=")
    _, marker, rest = rest.partition(" UserId=")
    named = f"{before} JobName={title}{marker}{rest}"
    changed = named.replace(" StdErr=", f" Comment={comment} StdErr=", 1) if " StdErr=" not in title else named
    assert job.parse_status(changed) == job.parse_status(line)
    assert job.parse_head(changed).uid == 1001


@given(st.text() | st.tuples(TEXTS, TEXTS).map("Dependency= Command= StdOut=".join))
def test_any_text_is_survived(text: str) -> None:
    assert job.parse_status(text).phase in ("waiting", "running", "ended")
    job.parse_accounting(text, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40|CANCELLED by 1001|0:0\n", Outcome.CANCELLED_BY_USER),
        ("40|CANCELLED by 0|0:0\n", Outcome.CANCELLED_BY_ADMIN),
        ("40|CANCELLED|0:0\n", Outcome.CANCELLED),
        ("40|NODE_FAIL|1:0\n40|COMPLETED|0:0\n", Outcome.COMPLETED),  # requeued: the last attempt counts
        ("40|RUNNING|0:0\n", None),
        ("40|PENDING|0:0\n", None),
        ("", None),
    ],
)
def test_accounting(text: str, expected: Outcome | None) -> None:
    status = job.parse_accounting(text, 1001)
    assert (status.outcome if status else None) == expected


@pytest.mark.parametrize("version", recorded("state.CANCELLED.sacct-Pn.out"))
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CANCELLED", Status("ended", "CANCELLED", Outcome.CANCELLED_BY_USER)),
        ("CANCELLED-by-root", Status("ended", "CANCELLED", Outcome.CANCELLED_BY_ADMIN)),
        ("NODE_FAIL", Status("ended", "NODE_FAIL", Outcome.NODE_FAILURE)),
        ("TIMEOUT", Status("ended", "TIMEOUT", Outcome.TIMEOUT)),
        ("RUNNING", None),
    ],
)
def test_recorded_accounting(version: str, name: str, expected: Status | None) -> None:
    assert job.parse_accounting(record(version, f"state.{name}.sacct-Pn.out"), 1001) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_status_asks_for_the_job_only(programs: Path, version: str) -> None:
    calls = answer(programs, "scontrol", jobs(version)["TIMEOUT"])
    assert job.read_status("37", PLAN) == Status("ended", "TIMEOUT", Outcome.TIMEOUT)
    assert calls.read_text() == "--oneliner show job 37\n"
    assert not list(programs.glob("sacct*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_who_cancelled_a_job(programs: Path, version: str) -> None:
    answer(programs, "scontrol", jobs(version)["CANCELLED"])
    assert job.read_status("37", PLAN).outcome is Outcome.CANCELLED  # no sacct
    calls = answer(programs, "sacct", f"37|CANCELLED by {os.getuid()}|0:0|/home/alice\n")
    assert job.read_status("37", PLAN).outcome is Outcome.CANCELLED_BY_USER
    assert calls.read_text() == "--jobs 37 --allocations --noheader --parsable2 --format=JobID,State,ExitCode,WorkDir\n"
    answer(programs, "sacct", f"37|CANCELLED by {os.getuid() + 1}|0:0|/home/alice\n")
    assert job.read_status("37", PLAN).outcome is Outcome.CANCELLED_BY_ADMIN
    for late in ("37|RUNNING|0:0|/home/alice\n", "\n"):
        answer(programs, "sacct", late)
        assert job.read_status("37", PLAN) == Status("ended", "CANCELLED", Outcome.CANCELLED, provisional=True)
    answer(programs, "sacct", error="Slurm accounting storage is disabled\n", code=1)
    assert job.read_status("37", PLAN) == Status("ended", "CANCELLED", Outcome.CANCELLED)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_that_slurm_has_forgotten(programs: Path, version: str) -> None:
    two_clusters(programs, version)
    assert job.read_status("37", PLAN) == Status("ended", "", Outcome.UNKNOWN)
    answer(programs, "sacct", "37|COMPLETED|0:0|/home/alice/other\n37|FAILED|3:0|/home/alice\n")
    assert job.read_status("37", PLAN) == Status("ended", "FAILED", Outcome.FAILED)


STRANGER = "/home/alice/other"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_number_that_began_anew_is_not_the_runs(programs: Path, version: str) -> None:
    two_clusters(programs, version, here=jobs(version)["FAILED-3"].replace("/home/alice", STRANGER))
    assert job.read_status("37", PLAN) == Status("ended", "", Outcome.UNKNOWN)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("here", ["", STRANGER])
def test_a_job_of_another_cluster_is_looked_up_there(programs: Path, version: str, here: str) -> None:
    """Also if this one has a job with its number."""
    stranger = jobs(version)["FAILED-3"].replace("/home/alice", here) if here else ""
    plan = changed(PLAN, cluster="other")
    calls = two_clusters(programs, version, here=stranger, there=jobs(version)["RUNNING"])
    assert job.read_status("37", plan) == Status("running")
    assert calls.read_text().splitlines()[-1] == "-M other --oneliner show job 37"
    two_clusters(programs, version, here=stranger)
    note = "its job belongs to cluster other. Look from a login node of that cluster"
    assert job.read_status("37", plan) == Status("unknown", note=note)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("here", ["", STRANGER])
def test_a_record_without_a_cluster_is_compared_with_the_job(programs: Path, version: str, here: str) -> None:
    plan = changed(PLAN, cluster="")
    two_clusters(programs, version, here=jobs(version)["TIMEOUT"])
    assert job.read_status("37", plan) == Status("ended", "TIMEOUT", Outcome.TIMEOUT)
    two_clusters(programs, version, here=jobs(version)["FAILED-3"].replace("/home/alice", here) if here else "")
    status = job.read_status("37", plan)
    assert status.phase == "unknown"
    assert status.note.startswith("Slurm has no job 37 of this run here, and its record names no cluster. Look from")
    answer(programs, "sacct", "37|FAILED|3:0|/home/alice\n")
    assert job.read_status("37", plan) == Status("ended", "FAILED", Outcome.FAILED)


@pytest.mark.parametrize("directory", ["/scratch/a b/one", "/scratch/x=1 Y=2/one", "/scratch/대전/one"])
def test_directories_of_any_name_are_compared(directory: str) -> None:
    line = jobs("24.11.5")["RUNNING"].replace("WorkDir=/home/alice ", f"WorkDir={directory} ")
    plan = a_plan(run_directory=Path(directory))
    assert ownership.is_job_of(line, plan)
    assert not ownership.is_job_of(line, a_plan(run_directory=Path(f"{directory}-2")))
    assert not ownership.is_job_of(line, a_plan(run_directory=Path("/scratch/other/one")))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_controller_that_is_away_ends_no_job(programs: Path, version: str) -> None:
    answer(programs, "scontrol", error=record(version, "dead-scontrol-show-job-1.err"), code=1)
    status = job.read_status("37", PLAN)
    assert (status.phase, status.outcome) == ("running", None)
    assert status.note.startswith("Slurm does not answer (slurm_load_jobs error: Unable to contact slurm controller")


def test_a_controller_that_hangs_ends_no_job(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "TIMEOUT_SECONDS", 0.05)
    write_program(programs / "scontrol", "#!/bin/bash\nexec /bin/sleep 60\n")
    status = job.read_status("37", PLAN)
    assert status == Status("running", note="Slurm does not answer (scontrol timed out after 0.05 s); retrying")


@pytest.mark.usefixtures("programs")
def test_a_missing_scontrol_ends_no_job() -> None:
    assert job.read_status("37", PLAN).phase == "running"


HOSTS = {"22.05.8": ("gpu01", "gpu02"), "24.11.5": ("gpu03", "gpu04"), "26.05.5": ("gpu05", "gpu06")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "task", "node", "how"),
    [
        ("srun-exit3-one", 3, 1, "Exited with exit code 3"),
        ("srun-exit3-kill-on-bad-exit", 3, 1, "Exited with exit code 3"),
        ("srun-exit3-K-label", 0, 0, "Exited with exit code 3"),
        ("srun-exit-mixed", 2, 1, "Exited with exit code 2"),
        ("srun-sigkill-one", 2, 1, "Killed"),
        ("srun-sigkill-kill-on-bad-exit", 2, 1, "Killed"),
        ("srun-sigsegv-one", 1, 0, "Segmentation fault"),
        ("srun-sigterm-one", 2, 1, "Terminated"),
    ],
)
def test_the_task_that_failed_first(version: str, name: str, task: int, node: int, how: str) -> None:
    assert job.first_failed_task(collection(version, "srun.txt")[name]) == FailedTask(task, HOSTS[version][node], how)


@pytest.mark.parametrize("version", VERSIONS)
def test_of_tasks_that_failed_together_the_lowest(version: str) -> None:
    failed = job.first_failed_task(collection(version, "srun.txt")["srun-exit3-all"])
    assert failed in (
        FailedTask(0, HOSTS[version][0], "Exited with exit code 3"),
        FailedTask(2, HOSTS[version][1], "Exited with exit code 3"),
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name",
    [
        *("srun-scancelled", "srun-timeout", "srun-exit0-wait5", "srun-node-dies"),
        *("oom.job-out", "state.CANCELLED.job-out", "state.TIMEOUT.job-out"),
    ],
)
def test_tasks_that_end_with_their_step_did_not_fail(version: str, name: str) -> None:
    log = collection(version, "srun.txt").get(name)
    if log is None:
        assert (version, name) in [("22.05.8", "srun-node-dies"), ("22.05.8", "oom.job-out")]
        return
    assert job.first_failed_task(log) is None


def test_a_list_of_tasks() -> None:
    expected = FailedTask(1, "n-7.example", "Out Of Memory")
    assert job.first_failed_task("x\nsrun: error: n-7.example: tasks 1,4-6: Out Of Memory\n") == expected


# Of the cluster's Slurm 22.05 with cgroups; later ones say "Detected 1 oom_kill event in StepId=16.0" (their source).
CGROUP_LOG = """\
slurmstepd-node01: error: Detected 1 oom-kill event(s) in StepId=16.0. Some of your processes may have been killed by \
the cgroup out-of-memory handler.
srun: error: node01: task 0: Out Of Memory
srun: launch/slurm: _step_signal: Terminating StepId=16.0
slurmstepd-node01: error: *** STEP 16.0 ON node01 CANCELLED AT 2026-11-23T16:16:54 ***
"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (CGROUP_LOG, OutOfMemory(0, "node01")),
        (CGROUP_LOG.replace("1 oom-kill event(s) in", "3 oom_kill events in"), OutOfMemory(0, "node01")),
        (CGROUP_LOG.splitlines()[0], OutOfMemory(None, "node01")),
        ("[2026-11-21T03:12:14.012] error: Detected 1 oom_kill event in StepId=1.0. Some ...", OutOfMemory()),
        ("srun: error: gpu7: tasks 3,5: Out Of Memory\n", OutOfMemory(3, "gpu7")),
        ("srun: error: gpu7: task 3: Killed\nRuntimeError: CUDA out of memory\n", None),
        ("", None),
    ],
)
def test_want_of_memory_in_the_log(log: str, expected: Optional[OutOfMemory]) -> None:
    assert job.out_of_memory(log) == expected


@pytest.mark.parametrize(("version", "host"), [("24.11.5", "gpu03"), ("26.05.5", "")])
def test_want_of_memory_that_slurm_has_sampled(version: str, host: str) -> None:
    assert job.out_of_memory(collection(version, "srun.txt")["oom.job-out"]) == OutOfMemory(None, host, 52428800)


@given(st.text())
def test_any_line_of_srun_is_survived(text: str) -> None:
    job.first_failed_task(text)
    failed = job.first_failed_task(f"srun: error: n1: task 3: {text}")
    assert failed is None or (failed.task, failed.host) == (3, "n1")


@pytest.mark.parametrize(
    ("reason", "noted"),
    [
        ("QOSMaxWallDurationPerJobLimit", True),
        ("QOSMaxGRESPerJob", True),
        ("QOSMinGRES", True),
        ("AssocMaxNodePerJobLimit", True),
        ("QOSMaxGRESPerUser", False),  # until other jobs of the user end
        ("AssocGrpGRES", False),
    ],
)
def test_limits_of_each_job_do_not_go_by_waiting(reason: str, noted: bool) -> None:
    text = jobs("24.11.5")["PENDING-Held"].replace("Reason=JobHeldUser", f"Reason={reason}")
    assert f"Reason={reason}" in text
    assert bool(job.parse_status(text).note) is noted

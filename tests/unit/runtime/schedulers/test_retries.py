"""When job.sh asks that its job be queued again: retries.bash, with programs and schedulers of the test."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import UsageError
from ctrain_runtime.schedulers.script import job_script
from samples.plans import GPU_PARTITION, a_job, a_site, some_facts
from samples.programs import answer, write_program
from samples.scripts import Scripts, wait_until


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    made = Scripts(tmp_path)
    (made.bin / "queue").write_text('#!/bin/bash\necho again >>"$0.calls"\n')
    (made.bin / "queue").chmod(0o755)
    return made


BY_TIME_LIMIT = ("ct_queue_again=queue", "ct_find_cause=cause", "cause() { cause='time limit'; }")
WARNED = 'rank started 0; rank signalled 0 \'"signal": "USR1"\'; sleep 0.01'
LEFT = "rank ended 0 '\"code\": 85'; exit 85"
SAVES = 'date +%N >"$run/checkpoint/step-$CTRAIN_ATTEMPT"'
WAITS = 'rank started 0; touch "$run/up"; trap "exit 143" TERM; while :; do sleep 0.05; done'


SOON = 'warn_before_limit() { until [ -e "$run/up" ]; do sleep 0.05; done; kill -USR1 "$$"; }'


def start_job(
    scripts: Scripts, step: str, *, before: tuple[str, ...] = ("ct_queue_again=queue",), **options: Any
) -> subprocess.Popen[bytes]:
    """A job whose tasks are `step`, bash that may call `rank WHAT NUMBER [MORE]`, in the run of the one before."""
    plan = scripts.plan("true", **(options or {"retries": 3}))
    if not scripts.run.exists():
        scripts.create(plan)
    (scripts.run / "step.sh").write_text(f"""\
run={scripts.run}
. "$run/ctrain.bash"
NODE_RANK=0
rank() {{ node_event "$1" "\\"rank\\": $2${{3:+, $3}}"; }}
{step}
""")
    text = job_script(plan, header="", job_id="7", before=before, start=f"bash {scripts.run}/step.sh")
    (scripts.run / "job.sh").write_text(text)
    return scripts.start("job.sh")


def run_job(scripts: Scripts, step: str, **parts: Any) -> list[dict[str, Any]]:
    """The events of the job, without those of its start."""
    known = len(scripts.job_events()) if scripts.run.exists() else 0
    start_job(scripts, step, **parts).wait(60)
    return [event for event in scripts.job_events()[known:] if event["what"] != "started"]


def run_to_limit(scripts: Scripts, step: str = WAITS, **parts: Any) -> list[dict[str, Any]]:
    """The same of a job that gets SIGTERM once its program is up."""
    known = len(scripts.job_events()) if scripts.run.exists() else 0
    (scripts.run / "up").unlink(missing_ok=True)
    job = start_job(scripts, step, **{"before": BY_TIME_LIMIT, **parts})
    wait_until((scripts.run / "up").exists)
    job.send_signal(signal.SIGTERM)
    job.wait(60)
    return [event for event in scripts.job_events()[known:] if event["what"] not in ("started", "signalled")]


def times_queued(scripts: Scripts) -> int:
    calls = scripts.bin / "queue.calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


def requeued(cause: str = "saved and left") -> dict[str, Any]:
    return {"stage": "run", "what": "requeued", "message": cause}


def given_up(why: str) -> dict[str, Any]:
    return {"stage": "run", "what": "not requeued", "message": why}


def continued(attempt: int, start: str = "the last checkpoint") -> dict[str, Any]:
    return {"stage": "before", "what": "continued", "attempt": attempt, "message": start}


def ended(code: int) -> dict[str, Any]:
    return {"stage": "after", "what": "ended", "code": code}


def test_a_program_that_has_saved_and_left_goes_on_in_the_next_job(scripts: Scripts) -> None:
    assert run_job(scripts, f"{SAVES}; {WARNED}; {LEFT}") == [requeued()]
    assert times_queued(scripts) == 1
    step = 'echo "$CTRAIN_ATTEMPT $CTRAIN_RESUME"; rank started 0; rank ended 0 \'"code": 0\''
    assert run_job(scripts, step) == [continued(1), ended(0)]
    assert scripts.job_log() == f"\n--- attempt 1 ---\n1 {scripts.run}/checkpoint\n"
    assert [event["attempt"] for event in scripts.node_events()] == [0, 0, 0, 1, 1]
    assert times_queued(scripts) == 1


def test_a_job_that_meets_its_time_limit_is_queued_again_while_its_program_saves(scripts: Scripts) -> None:
    assert run_to_limit(scripts) == [requeued("time limit")]
    assert run_job(scripts, "exit 0") == [continued(1, "the start"), ended(0)]


@pytest.mark.parametrize(
    ("step", "again"),
    [
        (f"{WARNED}; {LEFT}", True),
        (f"{WARNED}; rank ended 0 '\"code\": 143'; exit 143", True),
        # Which rank ended first counts: that rank 1 lost it is no failure, that rank 0 left is no success.
        (f"{WARNED}; rank ended 0 '\"code\": 85'; sleep 0.01; rank ended 1 '\"code\": 1'; exit 1", True),
        (f"{WARNED}; rank ended 1 '\"code\": 1'; sleep 0.01; rank ended 0 '\"code\": 85'; exit 85", False),
        (f"{WARNED}; {SAVES}; rank ended 0 '\"code\": 0'", True),
        (f"{SAVES}; sleep 0.01; {WARNED}; rank ended 0 '\"code\": 0'", False),
        (f"rank started 0; {LEFT}", True),
        (f"{WARNED}; rank ended 0 '\"code\": 3'; exit 3", False),
        ("rank started 0; rank ended 0 '\"code\": 137'; exit 137", False),
        ("exit 1", False),
        ("exit 0", False),
    ],
)
def test_which_ends_of_a_program_are_not_its_last(scripts: Scripts, step: str, again: bool) -> None:
    events = run_job(scripts, step)
    assert [event["what"] for event in events] == ["requeued" if again else "ended"]
    assert times_queued(scripts) == again


@pytest.mark.parametrize("before", [("ct_queue_again=queue",), (*BY_TIME_LIMIT, "cause() { cause=; }")])
def test_a_job_that_is_cancelled_is_not_queued_again(scripts: Scripts, before: tuple[str, ...]) -> None:
    assert run_to_limit(scripts, before=before) == [ended(143)]


def test_a_run_that_ctrain_cancels_is_not_queued_again(scripts: Scripts) -> None:
    assert run_to_limit(scripts, f'touch "$run/cancelled"; {WAITS}') == [ended(143)]
    assert times_queued(scripts) == 0


def test_retries_are_used_up(scripts: Scripts) -> None:
    last = ("ct_last_job=last_job", 'last_job() { touch "$run/last"; }')
    step = f"{SAVES}; {WAITS}"
    assert run_to_limit(scripts, step, before=(*BY_TIME_LIMIT, *last), retries=1) == [requeued("time limit")]
    assert not (scripts.run / "last").exists()
    events = run_to_limit(scripts, step, before=(*BY_TIME_LIMIT, *last), retries=1)
    assert events == [continued(1), given_up("retries used: 1 of 1"), ended(143)]
    assert (scripts.run / "last").exists()


def test_a_chain_ends_that_gets_no_further(scripts: Scripts) -> None:
    chain = {"until_done": True}
    assert run_to_limit(scripts, f"{SAVES}; {WAITS}", **chain) == [requeued("time limit")]
    assert run_to_limit(scripts, f"{SAVES}; {WAITS}", **chain) == [continued(1), requeued("time limit")]
    crash_loop = given_up("crash loop: two ends with no new file in checkpoint/ between them")
    assert run_to_limit(scripts, **chain) == [continued(2), crash_loop, ended(143)]


def test_the_loss_of_a_node_is_no_crash_loop(scripts: Scripts) -> None:
    for attempt in range(3):
        job = start_job(scripts, WAITS, until_done=True)
        wait_until((scripts.run / "up").exists)
        os.killpg(job.pid, signal.SIGKILL)
        job.wait(60)
        (scripts.run / "up").unlink()
        assert scripts.job_events()[-2:][0] == (continued(attempt, "the start") if attempt else scripts.job_events()[0])
    assert run_job(scripts, "exit 0", until_done=True) == [continued(3, "the start"), ended(0)]


def test_a_scheduler_that_refuses(scripts: Scripts) -> None:
    answer(scripts.bin, "queue", "", code=1)
    refused = given_up("the scheduler does not queue the job again")
    assert run_job(scripts, f"{WARNED}; {LEFT}") == [requeued(), refused, ended(85)]


def test_restarts_in_the_job_count_anew_in_each_job(scripts: Scripts) -> None:
    options = {"retries": 1, "restarts": 1}
    fails = "rank started 0; rank ended 0 '\"code\": 3'; exit 3"
    step = f'[ "$CTRAIN_ATTEMPT" = 1 ] || {{ {fails}; }}; {WARNED}; {LEFT}'
    assert [event.get("attempt") for event in run_job(scripts, step, **options)] == [1, None]
    step = f'[ "$CTRAIN_ATTEMPT" = 3 ] || {{ {fails}; }}'
    assert [event.get("attempt") for event in run_job(scripts, step, **options)] == [2, 3, None]


RECORD = "JobId=7 JobName=run JobState={} Reason={} Dependency=(null) Requeue=1 Restarts={} PreemptTime={}"


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "preempted", "cause"),
    [
        ("COMPLETING", "TimeLimit", 0, "None", "time limit"),
        ("COMPLETING", "None", 0, "2026-11-28T12:00:00", "preempted"),
        ("COMPLETING", "NodeDown", 1, "None", "queued again by Slurm"),
        ("COMPLETING", "None", 0, "None", ""),
    ],
)
def test_why_slurm_ends_a_job(
    scripts: Scripts, state: str, reason: str, restarts: int, preempted: str, cause: str
) -> None:
    answer(scripts.bin, "scontrol", RECORD.format(state, reason, restarts, preempted))
    before = ("SLURM_JOB_ID=7", "ct_find_cause=slurm_cause", "ct_queue_again=requeue_slurm_job")
    assert run_to_limit(scripts, before=before) == [requeued(cause) if cause else ended(143)]
    asked = [line for line in (scripts.bin / "scontrol.calls").read_text().splitlines() if line.startswith("requeue")]
    assert asked == (["requeue 7"] if cause in ("time limit", "preempted") else [])


NODES = """#!/bin/bash
printf '%s\\n' "$*" >>"$0.calls"
case "$*" in
  *hostnames*'[1-3]') printf 'gpu%s\\n' 1 2 3 ;;
  *hostnames*) printf '%s\\n' "${3//,/$'\\n'}" ;;
  *--format=%D) printf '%s\\n' {others} ;;
  *--Node*) printf '{states}' ;;
  *'show job'*) echo 'JobId=7 ReqNodeList=(null) ExcNodeList={excluded} NodeList=gpu[1-3]' ;;
esac
"""


@pytest.mark.parametrize(
    ("states", "others", "excluded", "update"),
    [
        ("gpu1 completing\\ngpu2 down*\\ngpu3 completing\\n", "4 2", "(null)", "gpu2"),
        ("gpu1 completing\\ngpu2 down*\\ngpu3 drained\\n", "4 2", "gpu9", "gpu2,gpu3,gpu9"),
        ("gpu1 completing\\ngpu2 down*\\ngpu3 drained\\n", "4 1", "gpu9", ""),  # too few would be left
        ("gpu1 idle\\ngpu2 idle\\ngpu3 idle\\n", "4 2", "(null)", ""),
        ("", "4 2", "(null)", ""),  # Slurm does not answer
    ],
)
def test_nodes_that_failed_a_job_are_left_out_when_slurm_starts_it_again(
    scripts: Scripts, states: str, others: str, excluded: str, update: str
) -> None:
    program = NODES.replace("{states}", states).replace("{others}", others).replace("{excluded}", excluded)
    for name in ("scontrol", "sinfo"):
        write_program(scripts.bin / name, program)
    job = "SLURM_JOB_ID=7 SLURM_JOB_NODELIST='gpu[1-3]' SLURM_JOB_PARTITION=gpu"
    before = (job, "ct_queue_again=queue ct_leave_out=leave_out_slurm_nodes")
    events = run_job(scripts, f"{WARNED}; {LEFT}", before=before)
    left_out = {"stage": "run", "what": "left out", "message": update.removesuffix(",gpu9")}
    assert events == [requeued(), *([left_out] if update else [])]
    calls = (scripts.bin / "scontrol.calls").read_text().splitlines()
    updates = [call for call in calls if call.startswith("update")]
    assert updates == ([f"update JobId=7 ExcNodeList={update}"] if update else [])


def test_the_program_is_warned_before_the_time_limit(scripts: Scripts) -> None:
    warned = scripts.folder / "warned"
    leave = f"leave() {{ touch {warned}; {WARNED}; exit 85; }}; trap leave USR1"
    step = f'{leave}; touch "$run/up"; while :; do sleep 0.05; done'
    job = start_job(scripts, step, retries=1, time="1", before=("ct_queue_again=queue", SOON))
    assert "\nretry_job 1 60\n" in (scripts.run / "job.sh").read_text()
    job.wait(60)
    assert scripts.job_events()[-1] == requeued() and warned.exists()


@pytest.mark.parametrize(("seconds", "cause"), [(0, ""), (3000, ""), (3595, "time limit")])
def test_pbs_jobs_know_their_time_limit_by_the_clock(scripts: Scripts, seconds: int, cause: str) -> None:
    answer(scripts.bin, "qsub", "a banner\n8.login01\n")
    before = (f"SECONDS={seconds} PBS_JOBID=7.login01", "ct_find_cause=pbs_cause ct_queue_again=resubmit_pbs_job")
    events = run_to_limit(scripts, before=before, retries=1, time="1:00:00")
    queued = {"stage": "run", "what": "queued", "job": "8.login01"}
    assert events == ([requeued(cause), queued] if cause else [ended(143)])
    if cause:
        assert (scripts.bin / "qsub.calls").read_text() == f"-f -W depend=afterany:7.login01 {scripts.run}/job.sh\n"


def test_what_schedulers_are_asked_for(scripts: Scripts) -> None:
    scripts.create(scripts.plan("true", retries=2))
    job = (scripts.run / "job.sh").read_text()
    assert "#SBATCH --requeue\n#SBATCH --open-mode=append\n" in job and "--no-requeue" not in job
    asks = "ct_find_cause=slurm_cause ct_queue_again=requeue_slurm_job ct_leave_out=leave_out_slurm_nodes"
    assert f"\n{asks} ct_last_job=keep_slurm_job\n" in job
    facts = some_facts(cluster=Cluster((dataclasses.replace(GPU_PARTITION, cpu_bind=""),)))
    parts = {"site": a_site(scheduler="pbs"), "facts": facts, "run_directory": scripts.folder / "pbs"}
    directory = scripts.create(scripts.plan("true", retries=2, **parts))
    job = (directory / "job.sh").read_text()
    assert "#PBS -r y\n" in job and "\nct_find_cause=pbs_cause ct_queue_again=resubmit_pbs_job\n" in job


def test_retries_that_are_refused(scripts: Scripts) -> None:
    with pytest.raises(UsageError, match="--retries must be an integer of at least 0, not -1"):
        scripts.plan("true", retries=-1)
    with pytest.raises(UsageError, match="contradict each other"):
        scripts.plan("true", retries=1, until_done=True)
    with pytest.raises(UsageError, match="--until-done needs a queue: nothing queues this run again"):
        scripts.plan("true", local=True, until_done=True)


@pytest.mark.parametrize(
    ("key", "option", "expected"),
    [(2, None, (2, False)), ("until done", None, (0, True)), (2, 0, (0, False)), ("until done", 3, (3, False))],
)
def test_the_key_of_a_job_and_the_option(
    scripts: Scripts, key: Any, option: Optional[int], expected: tuple[int, bool]
) -> None:
    job = dataclasses.replace(a_job(command=("true",)), retries=key)
    for local in (False, True):
        program = scripts.plan(job=job, local=local, retries=0 if local else option).program
        assert (program.retries, program.until_done) == ((0, False) if local else expected)

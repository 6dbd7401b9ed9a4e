"""When job.sh starts a program again, and when it does not: restarts.bash, with programs and schedulers of the test."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime import payload
from ctrain_runtime.errors import ResourceError, UsageError
from ctrain_runtime.payload.ctrain_program import EXIT_GIVE_UP, EXIT_SAVED, EXIT_TRY_AGAIN
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import job_script
from samples.plans import a_site
from samples.programs import answer, write_program
from samples.scripts import Scripts, wait_until

pytestmark = pytest.mark.whole_run


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


def start_job(
    scripts: Scripts,
    step: str,
    *,
    restarts: int = 3,
    settle: float = 0.01,
    before: tuple[str, ...] = (),
    notify: tuple[str, ...] = (),
) -> subprocess.Popen[bytes]:
    """A job whose tasks are `step`, bash that may call `rank WHAT NUMBER [MORE]` to write an event of its attempt."""
    plan: LaunchPlan = dataclasses.replace(scripts.plan("true", restarts=restarts), notify=notify)
    scripts.create(plan)
    library = payload.text("ctrain.bash").replace("CT_SETTLE_SECONDS=1 ", f"CT_SETTLE_SECONDS={settle} ")
    (scripts.run / "ctrain.bash").write_text(library)
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
    """The events of the job's run and end."""
    start_job(scripts, step, **parts).wait(60)
    return scripts.job_events()[2:]


def restarted(attempt: int, code: int = 3, start: str = "the start") -> dict[str, Any]:
    return {"stage": "run", "what": "restarted", "attempt": attempt, "code": code, "message": start}


def given_up(why: str) -> dict[str, Any]:
    return {"stage": "run", "what": "not restarted", "message": why}


def ended(code: int) -> dict[str, Any]:
    return {"stage": "after", "what": "ended", "code": code}


FAILS = "rank started 0; rank ended 0 '\"code\": 3'; exit 3"
SAVES = 'echo "$CTRAIN_ATTEMPT" >"$run/checkpoint/step-$CTRAIN_ATTEMPT"'
MEASURES = 'echo "{}" >>"$run/metrics.jsonl"'
NO_CHECKPOINT = given_up("crash loop: two failures with no new checkpoint between them")
NO_PROGRESS = given_up("crash loop: two failures before any progress")


def test_a_program_that_fails_once_is_started_again(scripts: Scripts) -> None:
    step = f'echo "attempt $CTRAIN_ATTEMPT"; [ "$CTRAIN_ATTEMPT" = 1 ] || {{ {FAILS}; }}'
    assert run_job(scripts, step) == [restarted(1), ended(0)]
    assert scripts.job_log() == "attempt 0\n\n--- attempt 1 ---\nattempt 1\n"


def test_the_users_command_is_told_of_a_restart(scripts: Scripts) -> None:
    told = scripts.folder / "told"
    tell = ("sh", "-c", f'echo "$CTRAIN_EVENT: $(cat)" >>{told}')
    run_job(scripts, f'[ "$CTRAIN_ATTEMPT" = 1 ] || {{ {FAILS}; }}', notify=tell)
    wait_until(lambda: told.exists() and len(told.read_text().splitlines()) == 3)
    [line] = [line for line in told.read_text().splitlines() if line.startswith("restarted: ")]
    assert line.startswith("restarted: run run is restarted on ") and line.endswith(
        " from the start, after exit code 3"
    )


def test_it_resumes_from_its_own_checkpoint_once_it_has_one(scripts: Scripts) -> None:
    then = f'[ "$CTRAIN_ATTEMPT" = 0 ] || {SAVES}; [ "$CTRAIN_ATTEMPT" = 2 ] || {{ {FAILS}; }}'
    step = f'echo "${{CTRAIN_RESUME-none}}"; {then}'
    assert run_job(scripts, step) == [restarted(1), restarted(2, start="the last checkpoint"), ended(0)]
    said = [line for line in scripts.job_log().splitlines() if line and not line.startswith("---")]
    assert said == ["none", "none", f"{scripts.run}/checkpoint"]


def test_restarts_are_used_up_by_a_program_that_gets_on(scripts: Scripts) -> None:
    events = run_job(scripts, f"{SAVES}; {FAILS}", restarts=2)
    again = [restarted(number, start="the last checkpoint") for number in (1, 2)]
    assert events == [*again, given_up("restarts used: 2 of 2"), ended(3)]


def test_a_program_without_checkpoints_gets_on_by_its_metrics(scripts: Scripts) -> None:
    events = run_job(scripts, f"{MEASURES}; {FAILS}", restarts=2)
    assert events == [restarted(1), restarted(2), given_up("restarts used: 2 of 2"), ended(3)]


@pytest.mark.parametrize(
    ("step", "events"),
    [
        (FAILS, [restarted(1), NO_PROGRESS, ended(3)]),
        # The first attempt saved; the second did not.
        (
            f'[ "$CTRAIN_ATTEMPT" != 0 ] || {SAVES}; {FAILS}',
            [restarted(1, start="the last checkpoint"), NO_CHECKPOINT, ended(3)],
        ),
        # What is being written when a program dies is no checkpoint.
        (f'date >"$run/checkpoint/step.tmp"; {FAILS}', [restarted(1), NO_PROGRESS, ended(3)]),
        # Metrics are no progress of a program that saves.
        (
            f'{MEASURES}; [ "$CTRAIN_ATTEMPT" != 0 ] || {SAVES}; {FAILS}',
            [restarted(1, start="the last checkpoint"), NO_CHECKPOINT, ended(3)],
        ),
        # Once in vain, then a step, twice in vain.
        (
            f'[ "$CTRAIN_ATTEMPT" != 1 ] || {MEASURES}; {FAILS}',
            [restarted(1), restarted(2), restarted(3), NO_PROGRESS, ended(3)],
        ),
    ],
)
def test_a_crash_loop_ends(scripts: Scripts, step: str, events: list[dict[str, Any]]) -> None:
    assert run_job(scripts, step, restarts=5) == events


USR1 = '\'"signal": "USR1"\''
WARNED_BEFORE = '{"time": 100.5, "stage": "run", "what": "signalled", "attempt": 0, "rank": 0, "signal": "USR1"}'
TERM = '\'"signal": "TERM"\''


@pytest.mark.parametrize(
    ("step", "again"),
    [
        (FAILS, True),
        ("rank started 0; exit 137", True),  # killed with what would have recorded its end
        ("exit 1", False),  # nothing has started: a problem of the allocation or of the scheduler
        ("rank started 0; rank ended 0 '\"code\": 0'; exit 5", False),
        ("rank started 0; rank refused 1 '\"code\": 73'; exit 73", False),
        ("rank started 0; node_event stopped '\"code\": 81'; exit 81", False),
        # Ended from outside: the task had recorded the signal before its program ended.
        (f"rank started 0; rank signalled 0 {TERM}; rank ended 0 '\"code\": 143'; exit 143", False),
        (f"rank started 0; rank signalled null {TERM}; rank ended 0 '\"code\": 1'; exit 1", False),
        (f"rank started 0; rank signalled 0 {TERM}; exit 137", False),
        # Rank 1 is stopped because of rank 0.
        (
            f"rank started 0; rank started 1; rank ended 0 '\"code\": 3'; rank signalled null {TERM};"
            f" rank ended 1 '\"code\": 143'; exit 3",
            True,
        ),
        # Warned that its time is over, it has saved and left. Long before its end a warning means nothing.
        (f"rank started 0; rank signalled null {USR1}; rank ended 0 '\"code\": 1'; exit 1", False),
        (f"""rank started 0; echo '{WARNED_BEFORE}' >>"$run/nodes/0.jsonl"; {FAILS}""", True),
    ],
)
def test_which_ends_are_failures_of_the_program(scripts: Scripts, step: str, again: bool) -> None:
    events = run_job(scripts, f'[ "$CTRAIN_ATTEMPT" = 0 ] || exit 0; {step}')
    assert [event["what"] for event in events] == [*(["restarted"] if again else []), "ended"]


def by_code(code: int) -> str:
    return f"rank started 0; rank ended 0 '\"code\": {code}'; exit {code}"


def test_the_codes_of_the_contract_are_those_of_the_module() -> None:
    text = payload.text("ctrain.bash")
    assert f"CT_SAVED={EXIT_SAVED} CT_TRY_AGAIN={EXIT_TRY_AGAIN} CT_GIVE_UP={EXIT_GIVE_UP} " in text


def test_a_program_that_has_saved_and_left_is_not_restarted(scripts: Scripts) -> None:
    assert run_job(scripts, by_code(EXIT_SAVED)) == [ended(85)]


def test_a_program_may_ask_not_to_be_restarted(scripts: Scripts) -> None:
    events = run_job(scripts, by_code(EXIT_GIVE_UP))
    assert events == [given_up("by that code the program asks not to be restarted"), ended(78)]


def test_a_program_that_asks_for_another_try_is_in_no_crash_loop(scripts: Scripts) -> None:
    events = run_job(scripts, by_code(EXIT_TRY_AGAIN), restarts=3)
    again = [restarted(number, EXIT_TRY_AGAIN) for number in (1, 2, 3)]
    assert events == [*again, given_up("restarts used: 3 of 3"), ended(75)]


@pytest.mark.parametrize(("code", "again"), [(EXIT_SAVED, False), (EXIT_GIVE_UP, False), (1, True)])
def test_the_code_of_the_rank_that_ended_first_counts(scripts: Scripts, code: int, again: bool) -> None:
    """Its node may come later in the listing; the others lose their connection."""
    event = '{{"time": {}, "stage": "run", "what": "{}", "attempt": 0, "rank": {}, "code": {}}}'
    lines = [
        (0, [event.format("100.5", "started", 0, "null"), event.format("101.250000", "ended", 0, 134)]),
        (1, [event.format("100.5", "started", 1, "null"), event.format("101.249", "ended", 1, code)]),
    ]
    write = "".join(f"echo '{line}' >>\"$run/nodes/{node}.jsonl\"; " for node, some in lines for line in some)
    events = run_job(scripts, f'[ "$CTRAIN_ATTEMPT" = 0 ] || exit 0; {write} exit 1')
    assert ("restarted" in [event["what"] for event in events]) is again


def test_a_directory_that_is_being_written_is_no_checkpoint(scripts: Scripts) -> None:
    step = f'mkdir -p "$run/checkpoint/.step-$CTRAIN_ATTEMPT"; date >"$run/checkpoint/.step-$CTRAIN_ATTEMPT/0"; {FAILS}'
    assert run_job(scripts, step) == [restarted(1), NO_PROGRESS, ended(3)]


def test_events_of_an_earlier_attempt_say_nothing_of_the_next(scripts: Scripts) -> None:
    step = f'[ "$CTRAIN_ATTEMPT" != 0 ] || {{ {SAVES}; {FAILS}; }}; exit 1'
    assert run_job(scripts, step) == [restarted(1, start="the last checkpoint"), ended(1)]


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_between_two_attempts_ends_the_run(scripts: Scripts, times: int) -> None:
    job = start_job(scripts, f'touch "$run/failed"; {FAILS}', settle=1.5)
    wait_until((scripts.run / "failed").exists)
    time.sleep(0.5)
    for _ in range(times):
        job.send_signal(signal.SIGTERM)
    job.wait(60)
    assert scripts.job_events()[2:] == [{"stage": "run", "what": "signalled", "signal": "TERM"}, ended(3)]


def test_a_signal_while_nodes_are_looked_at_ends_the_run(scripts: Scripts) -> None:
    job = start_job(scripts, FAILS, before=('look_for_nodes() { touch "$run/looks"; sleep 1; }',))
    wait_until((scripts.run / "looks").exists)
    job.send_signal(signal.SIGTERM)
    job.wait(60)
    assert scripts.job_events()[2:] == [{"stage": "run", "what": "signalled", "signal": "TERM"}, ended(3)]


def test_a_scheduler_that_ends_the_job_is_heard(scripts: Scripts) -> None:
    assert run_job(scripts, FAILS, before=("ct_job_lasts=false",)) == [ended(3)]


@pytest.mark.parametrize(
    ("state", "code", "lasts"), [("RUNNING", 0, True), ("COMPLETING", 0, False), ("", 0, False), ("", 1, True)]
)
def test_what_slurm_says_of_the_job(scripts: Scripts, state: str, code: int, lasts: bool) -> None:
    answer(scripts.bin, "squeue", state, code=code)
    events = run_job(scripts, FAILS, restarts=1, before=("SLURM_JOB_ID=7", "ct_job_lasts=slurm_job_lasts"))
    assert [event["what"] for event in events] == [*(["restarted", "not restarted"] if lasts else []), "ended"]
    assert (scripts.bin / "squeue.calls").read_text().startswith("--noheader --jobs=7 --format=%T\n")


def test_nothing_of_a_run_around_this_one_is_taken_for_its_own(scripts: Scripts) -> None:
    plan = scripts.plan("sh", "-c", 'echo "${CTRAIN_ATTEMPT-none} ${CTRAIN_RESUME-none}"', local=True)
    scripts.create(plan)
    assert scripts.start("job.sh", CTRAIN_ATTEMPT="2", CTRAIN_RESUME="/other").wait(60) == 0
    assert scripts.log() == "none none\n"


def test_a_new_rendezvous(scripts: Scripts) -> None:
    step = f'echo "$MASTER_PORT"; [ "$CTRAIN_ATTEMPT" = 1 ] || {{ {FAILS}; }}'
    run_job(scripts, step, before=("set_rendezvous 127.0.0.1 5",))
    first, second = (line for line in scripts.job_log().splitlines() if line.isdigit())
    assert first != second


SRUN = """\
#!/bin/bash
# Starts the tasks of a step here, and ends all when one fails.
step=$(($(cat "$0.step" 2>/dev/null || echo 0) + 1))
echo "$step" >"$0.step"
until [ "$1" = /bin/bash ]; do shift; done
export SLURM_NTASKS=2 SLURM_STEP_ID=$step SLURM_STEP_NODELIST=gpu01 SLURM_NODEID=0
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & done
wait -n || { code=$?; kill $(jobs -p); wait; exit "$code"; }
wait
"""
# Rank 1 is killed at its second step, until the run is started again.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
run, rank = Path(os.environ["CTRAIN_RUN_DIR"]), os.environ["RANK"]
print(rank, os.environ["CTRAIN_ATTEMPT"], os.environ["MASTER_PORT"], os.environ.get("CTRAIN_RESUME"), flush=True)
if os.environ["CTRAIN_ATTEMPT"] == "0":
    saved = run / "checkpoint/step-1"
    if rank == "0":
        saved.touch()
        time.sleep(60)
    while not saved.exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def lines(scripts: Scripts, rank: int) -> list[str]:
    return [line for line in scripts.log(rank).splitlines() if line]


def test_steps_of_slurm_follow_each_other_in_one_job(scripts: Scripts) -> None:
    write_program(scripts.bin / "srun", SRUN)
    answer(scripts.bin, "squeue", "RUNNING")
    (scripts.folder / "train.py").write_text(PROGRAM)
    plan = scripts.plan("python3", "train.py", ranks_per_node=2, restarts=1)
    scripts.create(plan)
    assert scripts.start("job.sh", SLURM_JOB_ID="7").wait(60) == 0
    assert scripts.job_events()[2:] == [restarted(1, 137, "the last checkpoint"), ended(0)]
    (first, mark, second) = lines(scripts, 1)
    assert (first.split()[:2], first.split()[3], mark) == (["1", "0"], "None", "--- attempt 1 ---")
    assert (second.split()[:2], second.split()[3]) == (["1", "1"], f"{scripts.run}/checkpoint")
    assert int(second.split()[2]) == int(first.split()[2]) + 1
    events = [(event["what"], event["attempt"]) for event in scripts.node_events() if event.get("rank") == 1]
    assert events == [("started", 0), ("ended", 0), ("started", 1), ("ended", 1)]


@pytest.mark.parametrize("restarts", [0, 2])
def test_only_runs_with_restarts_have_attempts_in_their_scripts(scripts: Scripts, restarts: int) -> None:
    plan = scripts.plan("true", launcher="torchrun", ranks_per_node=2, restarts=restarts or None)
    scripts.create(plan)
    job, task = ((scripts.run / name).read_text() for name in ("job.sh", "task.sh"))
    assert ("run_job_with_restarts 2 srun" in job, "slurm_job_lasts" in job) == (bool(restarts), bool(restarts))
    assert ("resume_from_own APPTAINERENV_" in task, "CTRAIN_ATTEMPT" in task) == (bool(restarts), bool(restarts))


def test_a_task_of_the_preflight_belongs_to_no_attempt(scripts: Scripts) -> None:
    """An event of the node without an attempt is as before."""
    scripts.create(scripts.plan("true"))
    script = f'run={scripts.run}; . "$run/ctrain.bash"; NODE_RANK=0; node_event started \'"rank": 0\''
    subprocess.run(["bash", "-c", script], check=True)
    (event,) = map(json.loads, (scripts.run / "nodes/0.jsonl").read_text().splitlines())
    attempt: Optional[int] = event.get("attempt")
    assert (event["rank"], attempt) == (0, None)


# --- spare nodes

# Nodes gpu1 to gpu3 of a job; `sinfo` says how they are. A step runs on the first of those that it may use.
CLUSTER_OF_THREE = """\
#!/bin/bash
here=$(dirname "$0")
case ${0##*/} in
  scontrol) printf 'gpu%s\\n' 1 2 3 ;;
  squeue) echo RUNNING ;;
  sinfo)
    for mark in "$here"/silent*; do [ ! -e "$mark" ] || { rm "$mark"; exit 1; }; done
    cat "$here/states"
    ;;
  srun)
    echo "$*" >>"$here/srun.calls"
    tasks=1 nodes=(gpu1 gpu2 gpu3) kills=yes
    until [ "$1" = /bin/bash ]; do
      case $1 in
        --ntasks=*) tasks=${1#*=} ;;
        --kill-on-bad-exit=0) kills='' ;;
        --nodelist=*) IFS=, read -r -a nodes <<<"${1#*=}" ;;
        --exclude=*) for name in ${1#*=}; do [ "${nodes[0]}" != "$name" ] || nodes=("${nodes[@]:1}"); done ;;
      esac
      shift
    done
    export SLURM_NTASKS=$tasks SLURM_STEP_ID=$(date +%N) SLURM_STEP_NODELIST=gpu1
    for ((task = 0; task < tasks; task++)); do
      SLURMD_NODENAME=${nodes[task]} SLURM_PROCID=$task SLURM_LOCALID=0 SLURM_NODEID=$task "$@" &
    done
    wait -n || { code=$?; [ -z "$kills" ] || kill $(jobs -p); wait; exit "$code"; }
    wait
    ;;
esac
"""
# The rank on gpu1 fails in the first attempt.
ON_NODES = '[ "$CTRAIN_ATTEMPT" = 0 ] || exit 0; [ "$RANK" = 0 ] || sleep 60; exit 3'
WELL = "gpu1 allocated\ngpu2 mixed\ngpu3 allocated+\n"


def run_on_three(scripts: Scripts, states: str, *, nodes: int = 2, smi: str = "", **more: Any) -> list[str]:
    """The lists of nodes that the steps of a run were to leave out, "" for all; and what the job's events say of it."""
    for name in ("scontrol", "squeue", "sinfo", "srun"):
        write_program(scripts.bin / name, CLUSTER_OF_THREE)
    if smi:
        write_program(scripts.bin / "nvidia-smi", smi)
    (scripts.bin / "states").write_text(states)
    parts = {"nodes": nodes, "spare_nodes": 3 - nodes, "restarts": 1, **more}
    scripts.create(scripts.plan("bash", "-c", ON_NODES, **parts))
    scripts.start("job.sh", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="gpu[1-3]").wait(60)
    calls = (scripts.bin / "srun.calls").read_text().splitlines()
    steps = [call for call in calls if "/task.sh" in call]
    return [word for call in steps for word in call.split() if word.startswith("--exclude=")]


@pytest.mark.parametrize(
    ("states", "left_out"),
    [
        (WELL, ""),
        (WELL.replace("gpu1 allocated", "gpu1 down*"), "gpu1"),
        (WELL.replace("gpu1 allocated", "gpu1 allocated*"), "gpu1"),
        (WELL.replace("gpu1 allocated", "gpu1 draining"), "gpu1"),
        (WELL.replace("gpu1 allocated", "gpu1 draining").replace("gpu2 mixed", "gpu2 draining"), ""),  # else too few
    ],
)
def test_a_node_that_is_lost_is_replaced(scripts: Scripts, states: str, left_out: str) -> None:
    excluded = run_on_three(scripts, states)
    assert excluded == ([f"--exclude={left_out}"] if left_out else [])
    start = f"the start, without {left_out}" if left_out else "the start"
    assert scripts.job_events()[2:] == [restarted(1, start=start), ended(0)]


def test_a_controller_that_is_silent_for_a_while_says_nothing_of_the_nodes(scripts: Scripts) -> None:
    for number in range(3):
        (scripts.bin / f"silent{number}").touch()
    assert run_on_three(scripts, WELL) == []
    assert not list(scripts.bin.glob("silent*"))
    assert scripts.job_events()[2:] == [restarted(1, start="the start"), ended(0)]


def test_a_node_whose_gpu_is_broken_is_replaced(scripts: Scripts) -> None:
    smi = '#!/bin/bash\n[ "$SLURMD_NODENAME" != gpu1 ] || { echo "Unable to determine the device handle"; exit 15; }\n'
    assert run_on_three(scripts, WELL, smi=smi) == ["--exclude=gpu1"]


def test_too_few_nodes_are_left(scripts: Scripts) -> None:
    run_on_three(scripts, "gpu1 down*\ngpu2 down*\ngpu3 allocated\n")
    why = "1 of the job's 3 nodes are well, 2 are needed"
    assert scripts.job_events()[2:] == [given_up(why), ended(3)]


def test_where_too_few_nodes_are_left_the_job_is_queued_again(scripts: Scripts) -> None:
    run_on_three(scripts, "gpu1 down*\ngpu2 down*\ngpu3 allocated\n", retries=1)
    why = "1 of the job's 3 nodes are well, 2 are needed"
    requeued = {"stage": "run", "what": "requeued", "message": "too few of its nodes are well"}
    assert scripts.job_events()[2:4] == [given_up(why), requeued]


def test_a_job_with_spare_nodes(scripts: Scripts) -> None:
    plan = scripts.plan("true", nodes=2, spare_nodes=1, restarts=1)
    scripts.create(plan)
    job = (scripts.run / "job.sh").read_text()
    assert {"#SBATCH --nodes=3", "#SBATCH --ntasks=3", "#SBATCH --no-kill"} <= set(job.splitlines())
    assert "\nrun_job_with_restarts 1 run_on_good_nodes srun --job-name=run --nodes=2 --ntasks=2 " in job
    assert "\nlook_for_nodes() { look_for_good_nodes 2; }\n" in job
    assert (plan.size.nodes, plan.size.world_size) == (2, 2)


def test_where_spare_nodes_are_of_no_use(scripts: Scripts) -> None:
    with pytest.raises(UsageError, match=r"--spare-nodes is for restarts, of which there are none. Add --restarts N"):
        scripts.plan("true", spare_nodes=1)
    with pytest.raises(UsageError, match=r"must be an integer of at least 0, not -1"):
        scripts.plan("true", spare_nodes=-1, restarts=1)
    with pytest.raises(ResourceError, match=r"partition amd_a100nv_8 has 8 usable nodes, 9 requested"):
        scripts.plan("true", nodes=7, spare_nodes=2, restarts=1)
    with pytest.raises(UsageError, match="site local has one node"):
        scripts.create(scripts.plan("true", local=True, spare_nodes=1, restarts=1))
    pbs = {"site": a_site(scheduler="pbs"), "spare_nodes": 1, "restarts": 1}
    with pytest.raises(UsageError, match="PBS ends a job whose node fails"):
        scripts.create(scripts.plan("true", **pbs))

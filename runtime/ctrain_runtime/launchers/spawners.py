"""Launchers whose tasks start several ranks from inside one container: torchrun on each node, mpirun on one host.

What they start is rank.sh, which finds out who it is, runs the program, and records how it ended.
"""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import array, quote_argv
from ctrain_runtime.launchers import fragments, node, preflight, world_scan
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import Task, TaskIdentity

# What starts the ranks does not pass on the signals that warn.
WARN_RANKS = f"""\
rank_scripts() {{ # the processes of {run_files.RANK_SCRIPT} of this run on this node
  local pid
  for pid in $(LC_ALL=C grep -slzxF "$run/{run_files.RANK_SCRIPT}" /proc/[0-9]*/cmdline); do
    pid=${{pid%/cmdline}} pid=${{pid#/proc/}}
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != bash ] || echo "$pid"
  done
}}
warn_ranks() {{ # SIGNAL: to the programs of each of them
  local pid programs=() shells=() others=()
  for pid in $(rank_scripts); do find_programs "$pid"; done
  mapfile -t programs < <(printf '%s\\n' "${{programs[@]}}" | sort -u) # below the script, and below its subshell
  kill -s "$1" "${{programs[@]}}"
}} 2>/dev/null"""
# torchrun passes SIGTERM on and waits for half a minute. mpirun kills its ranks a second later, and likewise when the
# first of them fails (odls_base_sigkill_timeout of Open MPI 4.1): too soon to save a checkpoint. So SIGTERM goes past
# it, and it learns of no failure then.
END_RANKS = """\
end_ranks() {
  local pids
  read -r -d '' -a pids < <(rank_scripts)
  kill -TERM "${pids[@]}" 2>/dev/null || signal_step TERM # it has not started them yet
}"""
NO_FAILURE = '[ -z "$ending" ] || code=0 # mpirun would kill the other ranks\n'
TERMINATED = '[ -z "$ending" ] || [ "$code" != 0 ] || code=143'


def torchrun(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """One task per node."""
    who = "# RANK, LOCAL_RANK and WORLD_SIZE are torchrun's."
    return _task(plan, identity, "torchrun", node.agent(plan), who, is_patient=True)


def mpirun(plan: LaunchPlan, identity: TaskIdentity) -> Task:
    """One task in all, on one host: the image's own mpirun, which is there wherever MPI programs are."""
    agent = quote_argv(["mpirun", "-np", str(plan.world_size), "--bind-to", "none"])
    who = f"""\
export RANK=${{OMPI_COMM_WORLD_RANK:?}} WORLD_SIZE=${{OMPI_COMM_WORLD_SIZE:?}}
export LOCAL_RANK=$((RANK % {plan.ranks_per_node})) NODE_RANK=$((RANK / {plan.ranks_per_node}))"""
    return _task(plan, identity, "mpirun", agent, who, is_patient=False)


def _task(plan: LaunchPlan, identity: TaskIdentity, name: str, agent: str, who: str, *, is_patient: bool) -> Task:
    """`is_patient`: after SIGTERM, it lets its ranks end in their own time."""
    task = [
        fragments.head(plan, f"One task of {plan.run}, started by {identity.started_by}: {name} starts its ranks."),
        "binds=()",
        identity.bash,
        "export NODE_RANK",
        *world_scan.start(plan, identity),
        WARN_RANKS,
        *([] if is_patient else [END_RANKS]),
        fragments.pass_signals("warn_ranks", end="pass_term" if is_patient else "end_ranks"),
        fragments.home(plan),
        fragments.container(plan, identity),
        *([preflight.prove(plan, f"{agent} python3")] if plan.preflight else []),
        f'launch+=({agent} /bin/bash -p "$run/{run_files.RANK_SCRIPT}")',
        'run_step "${launch[@]}"',
        *([] if is_patient else [TERMINATED]),
        f"{world_scan.end(plan)}leave",
        'exit "$code"\n',
    ]
    rank = [
        fragments.head(plan, f"One rank of {plan.run}, started by {name} in the container."),
        who,
        fragments.recorder(plan),
        fragments.world_check(plan, name),
        array("launch", fragments.checked_command(plan, list(plan.command))),
        fragments.pass_signals(),
        fragments.run_recorded(after="" if is_patient else NO_FAILURE),
    ]
    scripts = {run_files.TASK_SCRIPT: "\n".join(task), run_files.RANK_SCRIPT: "\n".join(rank)}
    return Task(run_files.TASK_SCRIPT, scripts)

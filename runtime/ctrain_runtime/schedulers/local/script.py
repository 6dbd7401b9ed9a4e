"""A launch plan as bash runs it on this machine: all tasks as process groups below job.sh."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers.process import CANCEL_GRACE_SECONDS, GRACE_SECONDS, JOB_ID
from ctrain_runtime.schedulers.script import Task, TaskIdentity, job_script, start_script

KILL_TRIES = 50  # a tenth of a second each

# The port is tried: another run may have taken it.
RENDEZVOUS = """\
MASTER_PORT=$((61000 + ($$ + {salt}) % 4536))
while (exec 7<>"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null; do
  MASTER_PORT=$((61000 + (MASTER_PORT - 60999) % 4536))
done
export MASTER_ADDR={address} MASTER_PORT"""

# Each task is a process group (set -m), so that its end shows even if what would report it was killed. Processes that
# are left after the grace period, or at the end, are known by the environment that all of the run have. How tasks end
# comes through a pipe: `wait -n` misses those that end while the shell does something else. A `read` with a time limit
# can take a line and fail, so that one waits at another pipe, where nothing is lost.
TASKS = """\
marked() {{ # the processes of the run on this machine
  LC_ALL=C grep -slzxF "CTRAIN_RUN_DIR=$run" /proc/[0-9]*/environ
}}
kill_leftovers() {{ # until none is left: some start others meanwhile
  local pid left=yes tries=0
  while [ "$left" ] && ((++tries <= {tries})); do
    left=
    for pid in $(marked); do
      pid=${{pid%/environ}} pid=${{pid#/proc/}}
      case $pid in "$$" | "$starter" | "$BASHPID") ;; *) kill -KILL "$pid" 2>/dev/null && left=yes ;; esac
    done
    [ -z "$left" ] || sleep 0.1
  done
}}
signal_tasks() {{ # SIGNAL: to the task alone, which passes it on to the program, past the engine's own processes
  local group
  for group in "${{groups[@]}}"; do signal_children "$1" "$group"; done
}}
any_task() {{
  local group
  for group in "${{groups[@]}}"; do ! kill -0 -- "-$group" 2>/dev/null || return 0; done
  return 1
}}
stop() {{ # SECONDS: that they have
  [ -z "$killer" ] || return
  signal_tasks TERM
  (sleep "$1" && kill_leftovers) &
  killer=$!
  disown "$killer" # else some versions of bash report that it was killed
}}
run_task() {{ # TASK SCRIPT [ARGUMENT]...: the signal is for the task; wait for it, to report how it ended
  trap : TERM USR1 USR2
  CTRAIN_TASK=$1 /bin/bash -p "$run/$2" "${{@:3}}" 8>&- 9>&-
  report "$?"
}}
report() {{ # CODE
  echo "$1" >&9
  echo >&8
}}
start_tasks() {{ # FIRST COUNT SCRIPT [ARGUMENT]...: returns the exit code of the task that failed first, which ends all
  local task ended left=$2 code=0 groups=() killer='' signals=() starter=$BASHPID
  exec 8<> <(:) 9<> <(:)
  catch_signals
  set -m
  for ((task = $1; task < $1 + $2; task++)); do
    run_task "$task" "${{@:3}}" &
    groups+=($!)
  done
  set +m
  while ((left)); do
    ended=0
    read -t 0 -u 9 || read -r -t {poll} -u 8
    if read -t 0 -u 9; then
      read -r -u 9 ended
      ((left--))
    elif ! any_task && ! read -t 0 -u 9; then
      left=0 ended=137 # what would report was killed
    fi
    [ "$ended" = 0 ] || {{ [ "$code" != 0 ] || code=$ended; [ "${{keep_going-}}" ] || stop {grace}; }}
    look_for_signals
    handle_signals
  done
  [ -z "$killer" ] || kill "$killer" 2>/dev/null
  kill_leftovers
  return "$code"
}}
tasks() {{ # FIRST COUNT SCRIPT [ARGUMENT]...: apart, so that signals reach it and not the tasks
  (start_tasks "$@")
}}
catch_signals() {{ # a trap that runs while `read` waits must not start processes: they would go on reading
  trap 'signals+=(TERM); echo >&8' TERM
  trap 'signals+=(USR1); echo >&8' USR1
  trap 'signals+=(USR2); echo >&8' USR2
}}
look_for_signals() {{ # that come another way
  :
}}
handle_signals() {{
  local name taken=("${{signals[@]}}")
  signals=()
  for name in "${{taken[@]}}"; do
    if [ "$name" = TERM ]; then stop {asked}; else signal_tasks "$name"; fi
  done
}}"""


def rendezvous(plan: LaunchPlan, address: str) -> str:
    """Bash that exports the rendezvous of a run whose first task is on this machine; `address` is bash."""
    return RENDEZVOUS.format(salt=int(plan.run_key, 16) % 4536, address=address)


def task_functions(patience: int = 0, poll_seconds: int = 1, *, cancel_grace: float | None = None) -> str:
    """Bash functions that run tasks as processes of this machine; they need `run`, and signal_children of run_step.

    `patience` is added to the seconds from SIGTERM to SIGKILL; `cancel_grace` replaces them if the run was cancelled.
    """
    grace = GRACE_SECONDS + patience
    asked = grace if cancel_grace is None else cancel_grace
    return TASKS.format(grace=grace, asked=asked, tries=KILL_TRIES, poll=poll_seconds)


def identity(plan: LaunchPlan) -> TaskIdentity:
    """The tasks of a group, which stands for a node, have the same NODE_RANK."""
    per_group = max(1, plan.ranks_per_node // plan.ranks_per_task)
    bash = f"""\
task=${{CTRAIN_TASK:?}} tasks={plan.tasks}
local_task=$((task % {per_group})) NODE_RANK=$((task / {per_group}))"""
    return TaskIdentity(started_by="ctrain", bash=bash, hosts="echo localhost")


def render(plan: LaunchPlan, task: Task) -> Launch:
    meet = rendezvous(plan, "127.0.0.1")  # every rank is on this machine
    if plan.interactive:
        return on_terminal(plan, task, meet)
    stage_in = [quote_argv(["env", "CTRAIN_TASK=0", *start_script(plan, script)]) for script in task.stages]
    start = f"tasks 0 {plan.tasks} {task.script}"
    functions = task_functions(cancel_grace=CANCEL_GRACE_SECONDS)
    text = job_script(plan, header="", job_id=JOB_ID, before=f"{meet}\n{functions}", start=start, stage_in=stage_in)
    return Launch(plan, _argv(plan), {run_files.JOB_SCRIPT: text, **task.scripts})


def on_terminal(plan: LaunchPlan, task: Task, before: str) -> Launch:
    """One task as a process of this machine, with its terminal."""
    start = quote_argv(["exec", *start_script(plan, task.script)])
    text = f"#!/bin/bash -p\n{before}\nexport CTRAIN_TASK=0\n{start}\n"
    return Launch(plan, _argv(plan), {run_files.JOB_SCRIPT: text, **task.scripts})


def _argv(plan: LaunchPlan) -> tuple[str, ...]:
    return "/bin/bash", "-p", f"{plan.run_directory}/{run_files.JOB_SCRIPT}"

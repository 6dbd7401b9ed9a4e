"""job.sh, which every scheduler runs on one host: its stages, its events, and how it outlives signals."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.engines import apptainer
from ctrain_runtime.errors import DataError, PreflightError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.store.lease import MAX_LEASE_SECONDS

SIGNAL_CHILDREN = """\
signal_children() { # SIGNAL PID; fails if it has none
  local kids=()
  read -r -a kids <"/proc/$2/task/$2/children"
  ((${#kids[@]})) && kill -s "$1" "${kids[@]}"
} 2>/dev/null"""
PREFLIGHT = "preflight"  # the argument by which a task proves its world instead of running the program


@dataclass(frozen=True)
class Task:
    """What the scheduler starts `plan.tasks` times: the name of a script in the run directory. `scripts` maps the names
    of all files that it needs to their texts. `stages` are scripts that each node runs once before, in this order."""

    script: str
    scripts: dict[str, str]
    stages: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskIdentity:
    """How a task learns who it is.

    `bash` sets task, tasks, local_task, NODE_RANK, and exports MASTER_ADDR and MASTER_PORT: the rendezvous is the
    first node of what was started, not of the allocation around it. `mpi_bash` refuses what MPI could not work with,
    and adds to the array `binds`. `hosts` prints the names of the nodes. `passed` and `passed_prefixes` name the
    variables that pass into the container. `gpu_numbers` is the variable that has the node's numbers of the GPUs in
    CUDA_VISIBLE_DEVICES, which counts those of a cgroup from 0 ("": none, or they are the same). `job_variables` are
    about the job and its nodes alone: they pass into containers of tasks that are no ranks.
    """

    started_by: str
    bash: str
    mpi_bash: str = ""
    hosts: str = ""
    passed: tuple[str, ...] = ()
    passed_prefixes: tuple[str, ...] = ()
    gpu_numbers: str = ""
    job_variables: tuple[str, ...] = ()

    def passing(self, *names: str) -> TaskIdentity:
        """This one, with further variables that pass into the container."""
        return dataclasses.replace(self, passed=(*self.passed, *names))

    def passing_only(self) -> TaskIdentity:
        """This one, with none of the scheduler's variables passing into the container."""
        return dataclasses.replace(self, passed=(), passed_prefixes=())


def start_script(plan: LaunchPlan, script: str, *arguments: str) -> list[str]:
    """The argv of a script of the run directory on a node, for the scheduler's own launch command.

    A run directory that the node does not have would otherwise show as a missing file of bash's.
    """
    complaint = "ctrain: run directory $1 is not visible on $(uname -n). Choose one that all nodes share: --runs DIR"
    refusal = f'{{ echo "{complaint}" >&2; exit {DataError.exit_code}; }}'
    check = f'[ -r "$0" ] || {refusal}; shift; exec /bin/bash -p "$0" "$@"'
    return ["/bin/bash", "-p", "-c", check, f"{plan.run_directory}/{script}", plan.run_directory, *arguments]


def job_script(
    plan: LaunchPlan,
    *,
    header: str,
    job_id: str,
    before: str,
    start: str,
    stage_in: Iterable[str] = (),
    preflight: str = "",
    end_tasks: str = "  signal_step TERM",
    signal_step: str = "",
) -> str:
    """The text of job.sh.

    `header` holds the scheduler's directives; `job_id` is bash for the job's id; `start` is one command that runs all
    tasks to their end; `before` is further bash for that stage. `stage_in` are commands that each copy a file to the
    nodes, as far as they can, and `preflight` is one that must succeed. `end_tasks` is bash that asks them to end.
    `signal_step` is a function of this name that replaces that of run_step().
    """
    release = f"rm -f {shlex.quote(plan.lease)} 2>/dev/null\n  " if plan.lease else ""
    return f"""\
#!/bin/bash -p
{header}# Run {plan.run}: prepares, starts the tasks, and writes how it ended, whoever watches.
run={shlex.quote(plan.run_directory)}
export CTRAIN_RUN_DIR=$run # marks every process of the run
node=$(uname -n)
event() {{ # STAGE WHAT [MORE]
  local now=${{EPOCHREALTIME/[^0-9]/.}} # some locales write a comma
  now=${{now:-$(date +%s.%N)}}
  printf '{{"time": %s, "stage": "%s", "node": "%s", "what": "%s"%s}}\\n' \\
    "${{now:-null}}" "$1" "${{node%%.*}}" "$2" "${{3:+, $3}}" >>"$run/{run_files.EVENTS}"
}}
event before started "\\"job\\": \\"{job_id}\\""
[ -z "${{CTRAIN_LOCK_FD:-}}" ] || exec {{CTRAIN_LOCK_FD}}>&- # the submission is over
{apptainer.load_modules(plan.engine, plan.modules)}{before}
end_tasks() {{
{end_tasks}
}}
# Signals go on to the tasks, and this script outlives them.
{run_step()}{signal_step}
signalled() {{ # SIGNAL: evidence, unless what runs has ended by itself before
  is_over || event run signalled "\\"signal\\": \\"$1\\""
}}
end_step() {{ # once, however often it is asked
  [ -z "$ending" ] || return
  signalled TERM
  ending=yes
  end_tasks
}}
trap end_step TERM INT
trap 'signalled USR1; signal_step USR1' USR1
trap 'signalled USR2; signal_step USR2' USR2
finish() {{
  {release}event after ended "\\"code\\": $code"
  exit "$code"
}}

{_stage_in(stage_in)}{_preflight(plan, preflight)}event run started
run_step {start}
finish
"""


def renew_lease(plan: LaunchPlan) -> list[str]:
    """Lines of bash by which a job, once it runs, limits the lease on its image to its own time."""
    if not plan.lease:
        return []
    minutes = plan.time_limit or MAX_LEASE_SECONDS // 60
    touch = quote_argv(["touch", "--no-create", f"--date=+{minutes} minutes", plan.lease])
    return [
        "# Tells the store. Where a node cannot write to it, what was recorded at the submission holds.",
        f"{touch} 2>/dev/null",
    ]


# A process that sleeps beside a step, and that only a signal to the whole group, session or tree of the script ends.
WITNESS = """\
to_all='' # whether SIGTERM came to everything that the step runs
start_witness() {
  ( # bash alone: the image may have no programs for it. Its name keeps it from those who look for a script
    printf witness >"/proc/$BASHPID/comm"
    trap - TERM
    trap '' INT QUIT HUP USR1 USR2
    exec <> <(:) >/dev/null 6>&- 8>&- # it waits at a pipe that stays empty
    [ -z "${PMI_FD-}" ] || eval "exec $PMI_FD>&-"
    while kill -0 "$$"; do read -r -t 1; done
  ) 2>/dev/null &
  witness=$!
  disown "$witness" # else bash reports its end
}
end_witness() { # until it has gone: one that has just started holds what this script has open, as the lock on the home
  local parent='' tries=0
  read -r _ _ _ parent _ <"/proc/$witness/stat"
  [ "$parent" = "$$" ] || return # it was ended, and another process may have its number
  kill -KILL "$witness"
  while kill -0 "$witness" && ((++tries < 100)); do sleep 0.01; done
} 2>/dev/null
pass_term() { # torchrun signals the group of a rank, some schedulers all processes of a task: then the program has it
  read -r -t 0.2 <> <(:)
  if kill -0 "${witness:-0}" 2>/dev/null; then signal_programs TERM; else to_all=yes; fi
}"""


def run_step(ignored: str = "", *, interactive: bool = False, witness: bool = False) -> str:
    """Bash functions of scripts that outlive signals: run_step COMMAND... sets `code`, signal_step SIGNAL passes a
    signal on to what the step has started, or is about to start; after `ending` is set, no step starts.

    The exit code comes through a pipe from a subshell that waits in the foreground: `wait`, once a signal has ended it
    early, loses the status of a child that ends in that moment (seen with bash 5.2). `ignored` names signals that the
    command ignores until it handles them. With a `witness`, pass_term passes SIGTERM on unless the command has it, by
    functions of launchers/programs.bash; what a signal to all has left of the command then ends in its own time. An
    `interactive` command keeps the terminal: bash would give a background process no standard input, and Ctrl-C would
    end the subshell that reports the exit code.
    """
    terminal_signals, stdin, end = ("trap : INT QUIT HUP", " <&0", "HUP") if interactive else ("trap - INT", "", "TERM")
    ignore = f"trap '' {ignored}; " if ignored else "trap : USR1 USR2; "
    begin, over = ("\n  start_witness", "\n  end_witness\n  wait_for_survivors") if witness else ("", "")
    return f"""\
exec 6<> <(:) # carries exit codes
child='' ending='' passed='' begun=''
{SIGNAL_CHILDREN}
{WITNESS + chr(10) if witness else ""}\
is_over() {{ # whether what was started has ended
  [ "$begun" ] && ! kill -0 "$child" 2>/dev/null
}}
signal_step() {{ # SIGNAL
  local tries=0
  [ -n "$child" ] || return
  passed=$1
  until signal_children "$1" "$child" || ((++tries > 50)); do sleep 0.02; done
}}
run_step() {{ # COMMAND...
  code=143
  [ -z "$ending" ] || return # a signal that came before{begin}
  ( # without bash's own message about a command that was killed
    {terminal_signals}; trap : TERM; {ignore}exec 5>&2 2>/dev/null
    echo 137 >&6 # until it is known: what reports may be killed itself
    "$@" 2>&5 5>&- 6>&-
    echo "$?" >&6
  ){stdin} &
  child=$! begun=yes
  [ -z "$ending" ] || [ "$passed" = {end} ] || signal_step {end}
  while kill -0 "$child" 2>/dev/null; do wait "$child"; done 2>/dev/null # a signal ends `wait` early
  while read -t 0 -u 6 && read -r -u 6 code; do :; done # without any, a signal to all came before the command{over}
  child=''
}}"""


def _stage_in(commands: Iterable[str]) -> str:
    return "".join(
        f"""\
event stage-in started
(umask 077 && od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$run/{run_files.STAGE_KEY}")
run_step {command}
rm -f "$run/{run_files.STAGE_KEY}"
event stage-in ended "\\"code\\": $code" # a node without a copy reads the file where it is

"""
        for command in commands
    )


def _preflight(plan: LaunchPlan, preflight: str) -> str:
    if not preflight:
        return ""
    check = plan.preflight
    complaint = f"preflight failed; messages are in {run_files.JOB_LOG}"
    if plan.launcher == "mpi":  # MPI ends ranks that cannot start before they report anything
        complaint += (
            ". If the image's MPI does not form one world here, pass --launcher gloo for Horovod, or env for programs"
            " without MPI"
        )
    failed = f"code={PreflightError.exit_code}\n  finish" if not check or check.strict else ":"
    return f"""\
event preflight started
run_step {preflight}
if [ "$code" != 0 ]; then
  [ -z "$ending" ] || finish # it was ended, and proves nothing
  grep -qs '^ctrain: preflight' "$run/{run_files.JOB_LOG}" || echo "ctrain: {complaint}" >&2
  event preflight failed
  {failed}
else
  event preflight passed
fi

"""


def directives(prefix: str, options: list[str]) -> str:
    """Comment lines by which a scheduler reads its options, one per line, quoted."""
    return "".join(f"{prefix} {quote_argv([option])}\n" for option in options)

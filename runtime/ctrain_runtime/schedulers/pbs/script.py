"""A launch plan as PBS runs it: job.sh by qsub, or by bash inside an allocation; the tasks by mpiexec or by TM.

mpiexec is PALS's, or for MPI ranks Hydra's (MPICH). TM is PBS's own way to the nodes of a job, which needs no ssh:
pbs_tmrsh starts node.sh on each, and that starts the tasks, as site local does.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import fragment, quote_argv
from ctrain_runtime.errors import SchedulerError, UsageError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.local.script import on_terminal, rendezvous, task_functions
from ctrain_runtime.schedulers.pbs import hydra
from ctrain_runtime.schedulers.pbs.options import job_options
from ctrain_runtime.schedulers.script import (
    PREFLIGHT,
    SIGNAL_CHILDREN,
    Task,
    TaskIdentity,
    job_script,
    renew_lease,
    start_script,
)

PALS, PALS_PMIX, HYDRA = "pals", "pals-pmix", "hydra"
PATIENCE_SECONDS = 5  # for node.sh or guard.sh to end its tasks before its end is not waited for

MPIEXEC_TASK = "task=${PMI_RANK:-${PMI_ID:-${PALS_RANKID:?}}} tasks=${PMI_SIZE:-%d}"

# PALS's sockets, which only compute nodes have (ALCF's documentation of containers).
PALS_SOCKETS = "[ ! -d /var/run/palsd ] || binds+=(/var/run/palsd)"

PMIX_SOCKETS = '[ -z "${PMIX_SERVER_TMPDIR:-}" ] || binds+=("$PMIX_SERVER_TMPDIR")'

# Two runs may share an allocation: each has its hosts, by the names that TM and mpiexec know.
HOSTS = """\
mapfile -t hosts < <(awk '!seen[$0]++' "${{PBS_NODEFILE:?}}")
hosts=("${{hosts[@]::{nodes}}}")
printf '%s\\n' "${{hosts[@]}}" >"$run/{file}"
check_hosts() {{
  [ "${{#hosts[@]}}" != {nodes} ] || return 0
  echo "ctrain: PBS_NODEFILE has ${{#hosts[@]}} hosts, but the plan has {nodes}" >&2
  return {code}
}}"""

MPIEXEC = """\
run_mpiexec() {
  check_hosts && mpiexec "$@"
}"""

# job.sh keeps what it is sent for the nodes of the step that is under way: signals.bash.
SIGNAL_STEP = f"""
sent=1000
signal_step() {{ # SIGNAL
  [ -n "$child" ] || return
  passed=$1
  ((++sent))
  : >"$run/{run_files.SIGNALS}/$child.$sent.$1"
}}"""

NODE = """\
#!/bin/bash -p
# The tasks of one node of {name}, started by pbs_tmrsh.
{environment}run={run}
{parts}"""


def identity(plan: LaunchPlan) -> TaskIdentity:
    """Tasks fill one node after the other. job.sh exports the rendezvous."""
    mpiexec = _flavour(plan)
    who = MPIEXEC_TASK % plan.tasks if mpiexec else f"task=${{CTRAIN_TASK:?}} tasks={plan.tasks}"
    bash = f"""\
{who}
local_task=$((task % {plan.tasks_per_node})) NODE_RANK=$((task / {plan.tasks_per_node}))
export MASTER_ADDR=${{MASTER_ADDR:?}} MASTER_PORT=${{MASTER_PORT:?}}"""
    # Not all PBS_*: Open MPI in the image would take PBS_ENVIRONMENT for a reason to use TM, which is not there.
    return TaskIdentity(
        started_by="mpiexec" if mpiexec else "pbs_tmrsh",
        hosts=f'cat "$run/{run_files.HOSTS}"',
        bash=bash,
        mpi_bash="\n".join((PALS_SOCKETS, *([PMIX_SOCKETS] if plan.mpi == PALS_PMIX else [])))
        if mpiexec == PALS
        else "",
        passed=("PBS_JOBID", "PBS_JOBNAME"),
        job_variables=("PBS_JOBID", "PBS_JOBNAME"),
        passed_prefixes=("PALS_", "PMI_", "PMIX_") if mpiexec else (),
    )


def render(plan: LaunchPlan, task: Task) -> Launch:
    """The scripts and the command that starts them: qsub, or bash in the allocation that the user already has."""
    if plan.interactive:
        if not plan.allocation:  # qsub -I returns neither the exit code of a command nor, as recorded, its output
            words = [word for option in job_options(plan) if option[0] not in ("-j", "-o", "-r") for word in option]
            raise UsageError(
                "on PBS a shell needs an interactive job", f"Run: qsub -I {quote_argv(words)}; retry in it"
            )
        return on_terminal(plan, task, rendezvous(plan, "127.0.0.1"))
    if plan.cpu_bind and not _flavour(plan):
        hint = "Remove it; where mpiexec is PALS's, set `mpi: [pals]` in the site file"
        raise UsageError(f"--cpu-bind {plan.cpu_bind}: pbs_tmrsh does not bind tasks", hint)
    job = f"{plan.run_directory}/{run_files.JOB_SCRIPT}"
    # -f: else a process of qsub's stays in the background for a minute, with the lock of the submission.
    argv = ("/bin/bash", "-p", job) if plan.allocation else ("qsub", "-f", job)
    text = job_script(
        plan,
        header=_directives(plan) + _environment(plan, remove=True),
        job_id=process.JOB_ID if plan.allocation else "$PBS_JOBID",
        before=_before(plan),
        start=_start(plan, task.script),
        stage_in=(_start(plan, script, per_node=1) for script in task.stages),
        preflight=_start(plan, task.script, PREFLIGHT) if plan.preflight else "",
        signal_step="" if _flavour(plan) else SIGNAL_STEP,
    )
    helpers = {"": {run_files.NODE_SCRIPT: _node_script(plan)}, HYDRA: {run_files.GUARD_SCRIPT: hydra.guard(plan)}}
    return Launch(plan, argv, {run_files.JOB_SCRIPT: text, **task.scripts, **helpers.get(_flavour(plan), {})})


def _flavour(plan: LaunchPlan) -> str:
    """The mpiexec that starts the tasks; "": TM does."""
    flavour = "" if plan.interactive else plan.mpi or plan.task_starter
    return PALS if flavour == PALS_PMIX else flavour


def _directives(plan: LaunchPlan) -> str:
    """qsub takes the words of a directive apart as a shell does (its source, make_argv)."""
    lines = job_options(plan)
    for line in lines:
        if any("\n" in word for word in line):  # it would end the comment and become a command
            raise UsageError(f"qsub option {' '.join(line)!r} holds a line break", "Write it in one line")
    return "".join(f"#PBS {quote_argv(line)}\n" for line in lines)


def _environment(plan: LaunchPlan, *, remove: bool = False) -> str:
    """Bash that exports the caller's variables, before any of its own."""
    path = shlex.quote(f"{plan.run_directory}/{run_files.ENVIRONMENT}")
    trap = f"trap {shlex.quote(f'rm -f {path}')} EXIT\n" if remove else ""
    return f"{trap}[ ! -r {path} ] || . {path}\n" if plan.passed else ""


def _before(plan: LaunchPlan) -> str:
    # A job starts in $HOME, and PBS delivers what it prints only when it has ended.
    log = [] if plan.allocation else [f'cd "$run" && exec >>"$run/{run_files.JOB_LOG}" 2>&1']
    hosts = HOSTS.format(nodes=plan.nodes, file=run_files.HOSTS, code=SchedulerError.exit_code)
    start = [hydra.run_mpiexec(PATIENCE_SECONDS) if _flavour(plan) == HYDRA else MPIEXEC]
    if not _flavour(plan):
        node = f"node_script=({quote_argv(start_script(plan, run_files.NODE_SCRIPT))})"
        start = [task_functions(PATIENCE_SECONDS, _poll_seconds(plan)), _bash("signals"), node, _bash("tm")]
    elif plan.nodes > 1:
        start.append("unset CUDA_VISIBLE_DEVICES # the GPUs of this node; mpiexec would pass it to all")
    return "\n".join([*log, *renew_lease(plan), hosts, rendezvous(plan, _address(plan)), *start])


def _address(plan: LaunchPlan) -> str:
    """The first node's, in the network that the site names."""
    return f'"${{hosts[0]%%.*}}"{plan.address_suffix}' if plan.address_suffix else '"${hosts[0]}"'


def _start(plan: LaunchPlan, script: str, *arguments: str, per_node: int = 0) -> str:
    """The command that runs a script as all tasks; or, however it ends on the others, `per_node` times on each node."""
    count, flavour = per_node or plan.tasks_per_node, _flavour(plan)
    if not flavour:
        return quote_argv(["run_all_on_nodes" if per_node else "run_on_nodes", str(count), script, *arguments])
    argv = ["run_mpiexec", "-n", str(per_node * plan.nodes or plan.tasks), "-ppn", str(count)]
    argv += ["--hostfile" if flavour == PALS else "-f", f"{plan.run_directory}/{run_files.HOSTS}"]
    binding = "none" if per_node or plan.ranks_per_task > 1 else plan.cpu_bind
    if flavour == HYDRA:
        # Else scripts that know nothing of it may close Hydra's socket, PMI_FD, which ends all.
        argv += [*(["-pmi-port"] if per_node else []), *(["-bind-to", binding] if binding else [])]
    else:
        argv += ["--pmi=pmix"] if plan.mpi == PALS_PMIX and not per_node else []
        argv += ["--cpu-bind", binding] if binding else []
        argv += ["--depth", str(plan.cpus_per_task)] if binding == "depth" else []
    if per_node:
        argv += ["/bin/bash", "-p", "-c", '"$@" || true', "ctrain"]
    elif flavour == HYDRA:
        script, arguments = run_files.GUARD_SCRIPT, (f"{plan.run_directory}/{script}", *arguments)
    return quote_argv([*argv, *start_script(plan, script, *arguments)])


def _poll_seconds(plan: LaunchPlan) -> int:
    """How often each node lists the directory of signals: at most 500 times a second in all, with up to 1,000 nodes.

    PBS waits 10 s by default between SIGTERM and SIGKILL (kill_delay), of which this is taken.
    """
    return 1 if plan.nodes <= 500 else 2


def _bash(name: str) -> str:
    return fragment(Path(__file__).with_name(f"{name}.bash"))


def _node_script(plan: LaunchPlan) -> str:
    functions = (SIGNAL_CHILDREN, task_functions(poll_seconds=_poll_seconds(plan)))
    return NODE.format(
        name=plan.run,
        run=shlex.quote(plan.run_directory),
        environment=_environment(plan),
        parts="\n".join((*functions, _bash("signals"), _bash("node"), "")),
    )

"""A launch plan as PBS runs it: job.sh by qsub, or by bash inside an allocation; the tasks by mpiexec or by TM.

mpiexec is PALS's, or for MPI ranks Hydra's (MPICH). TM is PBS's own way to the nodes of a job, which needs no ssh:
pbs_tmrsh starts node.sh on each, and that starts the tasks, as site local does.
"""

from __future__ import annotations

import shlex

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.plan.task import Task, TaskIdentity
from ctrain_runtime.schedulers import process
from ctrain_runtime.schedulers.pbs.options import job_options
from ctrain_runtime.schedulers.script import (
    PREFLIGHT,
    job_script,
    on_terminal,
    rendezvous,
    renew_lease,
    start_script,
)

PALS, PALS_PMIX, HYDRA = "pals", "pals-pmix", "hydra"


def identity(plan: LaunchPlan) -> TaskIdentity:
    """Tasks fill one node after the other. job.sh exports the rendezvous."""
    mpiexec = _flavour(plan)
    who = "identify_mpiexec_task" if mpiexec else "identify_task"
    pmix = ["add_pmix_sockets"] if plan.program.mpi == PALS_PMIX else []
    sockets = ["add_pals_sockets", *pmix] if mpiexec == PALS else []
    # Not all PBS_*: Open MPI in the image would take PBS_ENVIRONMENT for a reason to use TM, which is not there.
    return TaskIdentity(
        started_by="mpiexec" if mpiexec else "pbs_tmrsh",
        hosts=f'cat "$run/{run_files.HOSTS}"',
        bash=f"{who} {plan.tasks} {plan.tasks_per_node}\nneed_rendezvous",
        mpi_bash="\n".join(sockets),
        passed=("PBS_JOBID", "PBS_JOBNAME"),
        job_variables=("PBS_JOBID", "PBS_JOBNAME"),
        passed_prefixes=("PALS_", "PMI_", "PMIX_") if mpiexec else (),
    )


def render(plan: LaunchPlan, task: Task) -> Launch:
    """The scripts and the command that starts them: qsub, or bash in the allocation that the user already has."""
    if plan.program.interactive:
        # qsub -I returns neither the exit code of a command nor, as recorded, its output
        if not plan.placement.allocation:
            words = [word for option in job_options(plan) if option[0] not in ("-j", "-o", "-r") for word in option]
            raise UsageError(
                "on PBS a shell needs an interactive job", f"Run: qsub -I {quote_argv(words)}; retry in it"
            )
        return on_terminal(plan, task, rendezvous(plan, "127.0.0.1"))
    if plan.size.spare_nodes:
        problem = "PBS ends a job whose node fails: --spare-nodes has no use"
        raise UsageError(problem, "Remove it; --restarts works without")
    if plan.placement.cpu_bind and not _flavour(plan):
        hint = "Remove it; where mpiexec is PALS's, set `mpi: [pals]` in the site file"
        raise UsageError(f"--cpu-bind {plan.placement.cpu_bind}: pbs_tmrsh does not bind tasks", hint)
    if "\\" in plan.run_directory and not plan.placement.allocation:  # seen with OpenPBS 23.06
        problem = f"PBS cannot tell of jobs in {plan.run_directory}: a backslash makes its answers invalid JSON"
        raise UsageError(problem, "Use another directory: --runs DIR")
    job = f"{plan.run_directory}/{run_files.JOB_SCRIPT}"
    # -f: else a process of qsub's stays in the background for a minute, with the lock of the submission.
    argv = ("/bin/bash", "-p", job) if plan.placement.allocation else ("qsub", "-f", job)
    text = job_script(
        plan,
        header=_directives(plan) + _environment(plan),
        job_id=process.JOB_ID if plan.placement.allocation else "$PBS_JOBID",
        before=_before(plan),
        start=_start(plan, task.script),
        stage_in=(_start(plan, script, per_node=1) for script in task.stages),
        preflight=_start(plan, task.script, PREFLIGHT) if plan.checks.preflight else "",
    )
    more = {"": (run_files.NODE_SCRIPT,), HYDRA: (run_files.GUARD_SCRIPT,)}.get(_flavour(plan), ())
    return Launch(plan, argv, {run_files.JOB_SCRIPT: text, **task.scripts}, (*task.files, *more))


def _flavour(plan: LaunchPlan) -> str:
    """The mpiexec that starts the tasks; "": TM does."""
    flavour = "" if plan.program.interactive else plan.program.mpi or plan.program.task_starter
    return PALS if flavour == PALS_PMIX else flavour


def _directives(plan: LaunchPlan) -> str:
    """qsub takes the words of a directive apart as a shell does (its source, make_argv)."""
    lines = job_options(plan)
    for line in lines:
        if any("\n" in word for word in line):  # it would end the comment and become a command
            raise UsageError(f"qsub option {' '.join(line)!r} holds a line break", "Write it in one line")
    return "".join(f"#PBS {quote_argv(line)}\n" for line in lines)


def _environment(plan: LaunchPlan) -> str:
    """Bash that exports the caller's variables, before any of its own."""
    path = shlex.quote(f"{plan.run_directory}/{run_files.ENVIRONMENT}")
    return f"trap {shlex.quote(f'rm -f {path}')} EXIT\n[ ! -r {path} ] || . {path}\n" if plan.environment.passed else ""


def _before(plan: LaunchPlan) -> list[str]:
    # A job starts in $HOME, and PBS delivers what it prints only when it has ended.
    log = [] if plan.placement.allocation else [f'cd "$run" && exec >>"$run/{run_files.JOB_LOG}" 2>&1']
    start = []
    if not _flavour(plan):
        start = [quote_argv(["use_tm", str(_poll_seconds(plan)), *start_script(plan, run_files.NODE_SCRIPT)])]
    elif plan.size.nodes > 1:
        start = ["unset CUDA_VISIBLE_DEVICES # the GPUs of this node; mpiexec would pass it to all"]
    retries = ["ct_find_cause=pbs_cause ct_queue_again=resubmit_pbs_job"] if plan.program.is_requeued else []
    return [
        *log,
        *renew_lease(plan),
        *retries,
        f"list_hosts {plan.size.nodes}",
        rendezvous(plan, _address(plan)),
        *start,
    ]


def _address(plan: LaunchPlan) -> str:
    """The first node's, in the network that the site names."""
    suffix = plan.placement.address_suffix
    return f'"${{hosts[0]%%.*}}"{shlex.quote(suffix)}' if suffix else '"${hosts[0]}"'


def _start(plan: LaunchPlan, script: str, *arguments: str, per_node: int = 0) -> str:
    """The command that runs a script as all tasks; or, however it ends on the others, `per_node` times on each node."""
    count, flavour = per_node or plan.tasks_per_node, _flavour(plan)
    if not flavour:
        return quote_argv(["run_all_on_nodes" if per_node else "run_on_nodes", str(count), script, *arguments])
    total = per_node * plan.size.nodes or plan.tasks
    argv = ["run_hydra" if flavour == HYDRA else "run_mpiexec", "-n", str(total), "-ppn", str(count)]
    argv += ["--hostfile" if flavour == PALS else "-f", f"{plan.run_directory}/{run_files.HOSTS}"]
    binding = "none" if per_node or plan.ranks_per_task > 1 else plan.placement.cpu_bind
    if flavour == HYDRA:
        # Else scripts that know nothing of it may close Hydra's socket, PMI_FD, which ends all.
        argv += [*(["-pmi-port"] if per_node else []), *(["-bind-to", binding] if binding else [])]
    else:
        argv += ["--pmi=pmix"] if plan.program.mpi == PALS_PMIX and not per_node else []
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
    return 1 if plan.size.nodes <= 500 else 2

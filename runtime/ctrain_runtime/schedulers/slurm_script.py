"""What Slurm runs: job.sh (sbatch, or bash inside an allocation) and rank.sh (srun, once a rank)."""

from __future__ import annotations

from ctrain_runtime import lease, time_limit
from ctrain_runtime.engines import apptainer
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import script

IDENTITY = """\
export RANK=${SLURM_PROCID:?} WORLD_SIZE=${SLURM_NTASKS:?} LOCAL_RANK=${SLURM_LOCALID:?} NODE_RANK=${SLURM_NODEID:?}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}"""

PMIX_CHECK = """
[ -n "${PMIX_RANK:-}" ] || fail "srun started this rank without PMIx: MPI would see a world of one"
# PMIx keeps its sockets in a folder of this step, known only here.
[ -z "${PMIX_SERVER_TMPDIR:-}" ] || launch+=(--bind "$PMIX_SERVER_TMPDIR")"""


def launch(plan: LaunchPlan) -> Launch:
    """The scripts and the command that starts them: sbatch, or bash in the allocation that the user already has."""
    job = f"{plan.run_directory}/job.sh"
    argv = ("/bin/bash", job) if plan.allocation else ("sbatch", "--parsable", job)
    return Launch(plan, argv, {"job.sh": _job(plan), "rank.sh": _rank(plan)})


def _directives(plan: LaunchPlan) -> list[str]:
    return [
        f"--job-name={plan.run}",
        f"--partition={plan.partition}",
        f"--nodes={plan.nodes}",
        f"--ntasks={plan.world_size}",
        f"--ntasks-per-node={plan.ranks_per_node}",
        f"--cpus-per-task={plan.cpus_per_rank}",
        *([f"--gres=gpu:{plan.gpus_per_node}"] if plan.gpus_per_node else []),
        f"--time={plan.time}",
        f"--chdir={plan.run_directory}",
        f"--output={plan.run_directory.replace('%', '%%')}/{script.LOGS}/job.log",  # sbatch expands a lone %
        "--no-requeue",  # a second start would mix its records with those of the first
        *plan.submit,
    ]


def _directive(option: str) -> str:
    if "\n" in option:
        raise UsageError(
            f"sbatch option {option!r} holds a line break"
        )  # it would end the comment and become a command
    return f"#SBATCH {script.words([option])}"


def _job(plan: LaunchPlan) -> str:
    directives = "\n".join(map(_directive, _directives(plan)))
    srun = [
        *(
            "srun",
            f"--nodes={plan.nodes}",
            f"--ntasks={plan.world_size}",
            f"--ntasks-per-node={plan.ranks_per_node}",
        ),
        *(f"--cpus-per-task={plan.cpus_per_rank}", f"--mpi={plan.mpi}", "--kill-on-bad-exit=1"),
        *("/bin/bash", f"{plan.run_directory}/rank.sh"),
    ]
    return f"""\
#!/bin/bash
{directives}
# Run {plan.run}: computes the rendezvous on the first node, then starts one task a rank.
run={script.words([plan.run_directory])}
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536)) # above the ephemeral ports; differs between jobs that share a node
export MASTER_ADDR MASTER_PORT
unset SLURM_CPU_BIND # an allocation's binding of its shell must not hold for the ranks
{_lease(plan)}
{script.words(srun)}
code=$?
echo "$code" >"$run/{script.EXIT_CODE}"
exit "$code"
"""


def _lease(plan: LaunchPlan) -> str:
    """From its start on, a job needs its image for as long as its time limit; before, it may wait for longer."""
    if not plan.lease:
        return ""
    minutes = time_limit.parse_limit(plan.time) or lease.LONGEST // 60
    touch = script.words(["touch", "--no-create", f"--date=+{minutes} minutes", plan.lease])
    why = "# Tells the store. Where a node can't write to it, what was told at the submission holds."
    return f"{why}\n{touch} 2>/dev/null\n"


def _rank(plan: LaunchPlan) -> str:
    inside = [plan.image.root, *script.layers_check(plan), *plan.command]
    launch = "\n".join(
        [
            script.into_container(plan),
            script.array("launch", apptainer.exec_argv(plan)),
            *([PMIX_CHECK.strip()] if plan.mpi.startswith("pmix") else []),
            "# An empty home of its own on the node's disk: caches land there, and nothing of ~ comes in.",
            'home=$(mktemp -d "${TMPDIR:-/tmp}/ctrain-home.XXXXXX") || fail "no temporary folder on $host"',
            "trap 'rm -rf \"$home\"' EXIT",
            f'launch+=(--home "$home:{apptainer.HOME}" {script.words(inside)})',
        ]
    )
    return script.rank(plan, by="srun", identity=IDENTITY, launch=launch)

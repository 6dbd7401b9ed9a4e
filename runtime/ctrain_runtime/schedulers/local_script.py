"""What site `local` runs: job.sh starts the image once, and in it mpirun starts rank.sh once a rank.

Open MPI's mpirun inside the image is there wherever the image is, so that a laptop needs nothing but an engine.
Its variables OMPI_COMM_WORLD_RANK and _SIZE (man mpirun) also name the ranks of launcher `env`.
"""

from __future__ import annotations

from ctrain_runtime.engines import apptainer
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import script


def launch(plan: LaunchPlan) -> Launch:
    return Launch(plan, ("/bin/bash", f"{plan.run_directory}/job.sh"), {"job.sh": _job(plan), "rank.sh": _rank(plan)})


def _job(plan: LaunchPlan) -> str:
    mpirun = [
        *("mpirun", "-np", str(plan.world_size), "--bind-to", "none"),
        *("/bin/bash", f"{plan.run_directory}/rank.sh"),
    ]
    inside = [plan.image.root, *script.layers_check(plan), *mpirun]
    return f"""\
#!/bin/bash
# Run {plan.run} on this machine: {plan.nodes} x {plan.ranks_per_node} ranks in one container.
run={script.words([plan.run_directory])}
exec >"$run/{script.LOGS}/job.log" 2>&1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((61000 + $$ % 4536)) OMP_NUM_THREADS={plan.cpus_per_rank}
{script.into_container(plan)}
home=$(mktemp -d "${{TMPDIR:-/tmp}}/ctrain-home.XXXXXX") || exit 75
trap 'rm -rf "$home"' EXIT
trap : TERM INT # mpirun gets the signal too and ends its ranks; wait for it

{script.words(apptainer.exec_argv(plan))} --home "$home:{apptainer.HOME}" {script.words(inside)}
code=$?
echo "$code" >"$run/{script.EXIT_CODE}"
exit "$code"
"""


def _rank(plan: LaunchPlan) -> str:
    identity = f"""\
export RANK=${{OMPI_COMM_WORLD_RANK:?}} WORLD_SIZE=${{OMPI_COMM_WORLD_SIZE:?}}
export LOCAL_RANK=$((RANK % {plan.ranks_per_node})) NODE_RANK=$((RANK / {plan.ranks_per_node}))"""
    return script.rank(plan, by="mpirun", identity=identity, launch=script.array("launch", plan.command))

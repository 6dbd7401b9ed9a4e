"""The preflight: what a task does, instead of running the program, before the ranks of a run start."""

from __future__ import annotations

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.launchers import fragments
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import PREFLIGHT


def prove(plan: LaunchPlan, agent: str = "python3", *, needs_torch: bool = False) -> list[str]:
    """Bash that ends a task with the preflight; none for a plan without one. `agent` is bash for what starts the ranks;
    `needs_torch`: by torch, which the image may lack.

    On each node one process checks the GPUs and has the nodes meet; then the ranks do. Without Python none does.
    """
    check, size = plan.checks.preflight, plan.size
    if not check:
        return []
    directory = f"{plan.run_directory}/{run_files.PREFLIGHT_PROGRAMS}"
    by_tcp = check.expected if check.backend == "gloo" else 0.0  # NCCL's fabric is another than that of sockets
    gpus = size.gpus_per_node if plan.image.cuda else 0
    nodes = ["nodes", str(size.nodes), check.backend, f"{by_tcp:g}", str(gpus)] if size.nodes > 1 or gpus else []
    kind = "mpi" if plan.program.launcher == "mpi" else "env"
    ranks = [f"{directory}/world.py", kind, str(size.world_size), check.backend, f"{check.expected:g}", check.network]
    words = [*fragments.libraries(plan), "run", "/bin/sh", f"{plan.run_directory}/{run_files.PREFLIGHT_SCRIPT}"]
    text = f"""\
[ "$ct_stage" != {PREFLIGHT} ] || prove_world {fragments.INSIDE} {quote_argv(words)} \\
  "$(header_of "$image")" {quote_argv(["yes" if needs_torch else "", *nodes, "ranks"])} {agent} {quote_argv(ranks)}"""
    return [text]

"""The preflight: what a task does, instead of running the program, before the ranks of a run start."""

from __future__ import annotations

import shlex
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.launchers import fragments
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import PREFLIGHT

INSIDE = Path(__file__).with_name("inside")  # copied to the run directory, not imported: the host has no torch
HAS_TORCH = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
HEADER_BYTES = 1 << 15  # of a SIF: its id, and where and when each of its partitions was made (sif's spec.go)


def prove(plan: LaunchPlan, agent: str = "python3", *, needs_torch: bool = False) -> str:
    """Bash that ends a task with the preflight; "" for a plan without one. `agent` is bash for what starts the ranks;
    `needs_torch`: by torch, which the image may lack.

    On each node one process checks the GPUs and has the nodes meet; then the ranks do. Without Python none does.
    """
    check = plan.preflight
    if not check:
        return ""
    directory = f"{plan.run_directory}/{run_files.INSIDE}"
    by_tcp = check.expected if check.backend == "gloo" else 0.0  # NCCL's fabric is another than that of sockets
    gpus = plan.gpus_per_node if plan.image.cuda else 0
    nodes = quote_argv(["python3", f"{directory}/nodes.py", str(plan.nodes), check.backend, f"{by_tcp:g}", str(gpus)])
    meet = f'[ "${{LOCAL_RANK:-0}}" != 0 ] || {nodes} "$1" || exit; ' if plan.nodes > 1 or gpus else ""
    note = "echo 'no preflight: the image has no python3'"
    torch = f"python3 -c {shlex.quote(HAS_TORCH)} || {{ echo 'no preflight of ranks: no torch'; exit 0; }}; "
    before = "".join(f"{command}; " for command in fragments.libraries(plan))
    text = (
        f"{before}command -v python3 >/dev/null || {{ {note}; exit 0; }}; {meet}shift; {torch if needs_torch else ''}"
        'TORCH_CPP_LOG_LEVEL=ERROR exec "$@"'
    )
    kind = "mpi" if plan.launcher == "mpi" else "env"
    ranks = quote_argv(
        [f"{directory}/world.py", kind, str(plan.world_size), check.backend, f"{check.expected:g}", check.network]
    )
    return f"""\
if [ "${{1-}}" = {PREFLIGHT} ]; then
  header=$(head -c {HEADER_BYTES} "$image" 2>/dev/null | sha256sum)
  signalled() {{ :; }} # what ends this has interrupted no program
  run_step "${{launch[@]}}" /bin/sh -c {shlex.quote(text)} ctrain "$header" {agent} {ranks}
  leave
  exit "$code"
fi"""

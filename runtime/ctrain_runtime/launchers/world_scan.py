"""The scan of a node: the part of its first task that starts scan.py beside the ranks, and hears its verdict."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import WorldError
from ctrain_runtime.launchers.staging import PYTHONS
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.schedulers.script import PREFLIGHT, TaskIdentity

MOST_HOSTS = 256  # whose addresses each of them asks for
PROGRAM = Path(__file__).with_name("scan.py")  # read, not imported: it runs by the nodes' own Python


def is_scanned(plan: LaunchPlan) -> bool:
    """Whether the ranks of a plan are meant to join one world, which is looked for."""
    return (plan.world_size > 1 or plan.launcher == "node") and not plan.independent and not plan.interactive


def programs(plan: LaunchPlan) -> dict[str, str]:
    """What the scan needs in the run directory."""
    return {run_files.SCAN: PROGRAM.read_text(encoding="utf-8")} if is_scanned(plan) else {}


def start(plan: LaunchPlan, identity: TaskIdentity) -> list[str]:
    """Bash that starts the scan in the first task of each node, before anything is open that it must not hold. It
    waits for a second with bash alone: runs that end at once have no scan. An empty list: it has none."""
    if not is_scanned(plan):
        return []
    are_named = 1 < plan.nodes <= MOST_HOSTS and identity.hosts
    hosts = f"mapfile -t hosts < <({identity.hosts})" if are_named else "hosts=()"
    text = f"""\
scan=''
scan_world() {{ # who joins the world of the run: see docs/runs.md
  local python hosts
  exec </dev/null >/dev/null 2>&1 4<> <(:) # nobody writes to it
  read -r -t 1 -u 4
  {hosts}
  for python in {PYTHONS} ''; do
    ! "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 6))' || break
  done
  [ "$python" ] || return
  exec "$python" -I "$run/{run_files.SCAN}" "$run" {plan.launcher} "$NODE_RANK" {plan.nodes} {plan.ranks_per_node} \\
    "${{hosts[@]}}"
}}
if [ "$local_task" = 0 ] && [ "${{1-}}" != {PREFLIGHT} ]; then
  scan_world &
  scan=$!
fi"""
    return [text]


def end(plan: LaunchPlan) -> str:
    """Bash that ends the scan with its task, which fails if the scan has stopped it. The scan may have ended long ago,
    and another process have its number."""
    if not is_scanned(plan):
        return ""
    return f"""\
if [ "$scan" ]; then
  parent=''
  read -r _ _ _ parent _ <"/proc/$scan/stat"
  [ "$parent" != "$$" ] || kill "$scan"
  wait "$scan"
  [ "$?" != {WorldError.exit_code} ] || code={WorldError.exit_code}
fi 2>/dev/null
"""

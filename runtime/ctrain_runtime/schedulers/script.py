"""Pieces of the bash scripts that run on the nodes. Every value is quoted here, in one place."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ctrain_runtime import user_layer
from ctrain_runtime.engines import apptainer
from ctrain_runtime.image import LAYER_MARKER
from ctrain_runtime.plan.model import LaunchPlan

# Where a run's files are, relative to its run directory.
RANKS = "ranks"  # one small file a rank: when and where it started, when and how it ended
LOGS = "logs"
EXIT_CODE = "exit_code"


@dataclass(frozen=True)
class Task:
    """What the scheduler starts `plan.tasks` times: the name of a script in the run directory. `scripts` maps the names
    of all files that it needs to their texts."""

    script: str
    scripts: dict[str, str]


def words(argv: Iterable[str]) -> str:
    """An argv as bash words."""
    return " ".join(map(shlex.quote, argv))


def array(name: str, argv: Iterable[str]) -> str:
    """A bash array, one readable line a word."""
    return f"{name}=(\n" + "".join(f"  {shlex.quote(word)}\n" for word in argv) + ")"


def exports(variables: dict[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items()))


def into_container(plan: LaunchPlan) -> str:
    """Bash that hands the plan's environment and the listed variables of the node to the engine."""
    fixed = exports({apptainer.variable(plan, name): value for name, value in plan.environment.items()})
    # Site local starts its ranks inside the container: Slurm's variables would make Open MPI look for srun there.
    passed = apptainer.PASSED_PREFIXES if plan.scheduler == "slurm" else ("MASTER_",)
    prefixes = " ".join(f'"${{!{prefix}@}}"' for prefix in passed)
    target = apptainer.variable(plan, "$name")
    return f"""\
for name in {prefixes} {words(apptainer.PASSED)}; do
  [ -z "${{!name+set}}" ] || export "{target}=${{!name}}"
done
{fixed}"""


def layers_check(plan: LaunchPlan) -> list[str]:
    """A command prefix that runs in the container: stops if layers are missing, of the image or of the user.

    Engines whose overlay is switched off ignore a SIF's overlay partitions without a word; and a user may replace the
    file of a layer while his job waits.
    """
    checks = []
    if plan.image.marker:
        complaint = "ctrain: this engine ignores the layers of the image (is overlay off in its configuration?)"
        checks.append((f'[ "$(cat /{LAYER_MARKER} 2>/dev/null)" = "$0" ]', complaint))
    for layer in plan.layers:
        complaint = f"ctrain: layer {layer.path} is not the one of the plan: was it built again since?"
        checks.append((f"[ -e /{user_layer.USER_LAYERS}/{layer.key}.json ]", complaint))
    if not checks:
        return []
    stops = [f"{test} || {{ echo {shlex.quote(complaint)} >&2; exit 73; }}" for test, complaint in checks]
    return ["/bin/sh", "-c", "; ".join([*stops, 'exec "$@"']), plan.image.marker]


def rank(plan: LaunchPlan, *, by: str, identity: str, launch: str) -> str:
    """The script of one rank.

    `identity` sets RANK, WORLD_SIZE, LOCAL_RANK and NODE_RANK; `launch` sets the array `launch` to what the rank runs.
    """
    return f"""\
#!/bin/bash
# One rank of {plan.run}, started by {by}: finds out who it is, runs the program, and records how it ended.
run={shlex.quote(plan.run_directory)}

{identity}
export LOCAL_WORLD_SIZE={plan.ranks_per_node}
host=$(uname -n) # not HOSTNAME: srun hands down that of the first node
record="$run/{RANKS}/$RANK"
exec >"$run/{LOGS}/rank$RANK.log" 2>&1
echo "start $(date +%s.%N) ${{host%%.*}}" >"$record"
end() {{
  echo "end $(date +%s.%N) $1" >>"$record"
  exit "$1"
}}
fail() {{
  echo "ctrain: $1" >&2
  end 72
}}

# Ranks that each believe to be alone train N wrong models without an error: stop instead.
[ "$WORLD_SIZE" = {plan.world_size} ] || fail "{by} started $WORLD_SIZE ranks, the plan has {plan.world_size}"

{launch}

trap : TERM # the program gets the signal too; wait for it, so that its exit code is still recorded
"${{launch[@]}}"
end $?
"""

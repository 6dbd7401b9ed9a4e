"""What launcher gloo adds to a rank: Horovod's ranks meet without MPI, at a server in the first rank's container."""

from __future__ import annotations

import shlex
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import array
from ctrain_runtime.errors import SchedulerError
from ctrain_runtime.launchers import fragments
from ctrain_runtime.plan.model import LaunchPlan

SERVER = Path(__file__).with_name("inside") / "rendezvous.py"  # read, not imported: the host has no Horovod
PATIENCE_SECONDS = 300  # the first node may still be reading the image; and ranks may load data unevenly

# Horovod must be told an interface that the others reach: that of the most specific route to the first node.
# Addresses in /proc/net/route (man 5 proc) are numbers of the CPU, little-endian on all that images are made for.
INTERFACE = """\
interface_to() { # HOST; nothing if it is unknown: Horovod then takes that of the host name
  local address name network mask best=-1 found='' a b c d _
  address=$(getent ahostsv4 "$1") && IFS='. ' read -r a b c d _ <<<"$address" || return 0
  while read -r name network _ _ _ _ _ mask _; do
    [ "$name" != Iface ] || continue
    if ((((d << 24 | c << 16 | b << 8 | a) & 16#$mask) == 16#$network && 16#$mask > best)); then
      best=$((16#$mask)) found=$name
    fi
  done </proc/net/route
  echo "$found"
}
interface=lo
[ "$MASTER_ADDR" = 127.0.0.1 ] || interface=$(interface_to "$MASTER_ADDR")"""

CONNECT = 'exec 3<>"/dev/tcp/$HOROVOD_GLOO_RENDEZVOUS_ADDR/$HOROVOD_GLOO_RENDEZVOUS_PORT"'


def variables(plan: LaunchPlan) -> dict[str, str]:
    """Horovod's variables of a rank, as bash (horovod/common/gloo/gloo_context.cc).

    The port is not MASTER_PORT: torch.distributed may listen there.
    """
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_HOSTNAME": "node$NODE_RANK",
        "HOROVOD_RANK": "$RANK",
        "HOROVOD_SIZE": "$WORLD_SIZE",
        "HOROVOD_LOCAL_RANK": "$LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE": str(plan.ranks_per_node),
        "HOROVOD_CROSS_RANK": "$NODE_RANK",
        "HOROVOD_CROSS_SIZE": str(plan.nodes),
        "HOROVOD_GLOO_IFACE": "$interface",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "$MASTER_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "$((61000 + (MASTER_PORT - 61000 + 2268) % 4536))",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(PATIENCE_SECONDS),
    }


def join(plan: LaunchPlan) -> str:
    """Bash that exports the variables, and sets the array `serve`: what precedes the program in the container. In the
    first rank that is the server; in the others a wait for it, beside which their containers start."""
    exports = "\n".join(f"export {name}={value}" for name, value in variables(plan).items())
    server = f'python3 "$run/{run_files.RENDEZVOUS}" "$HOROVOD_GLOO_RENDEZVOUS_PORT" {plan.nodes} {plan.ranks_per_node}'
    refusal = fragments.refusal(SchedulerError.exit_code, "cannot connect to the server of the first rank")
    wait = f"""\
until timeout 10 /bin/bash -p -c {shlex.quote(CONNECT)} 2>/dev/null; do
  ! grep -qs '"what": "ended", "rank": 0,' "$CTRAIN_RUN_DIR/{run_files.NODES}/0.jsonl" || break # and its server with it
  ((SECONDS < {PATIENCE_SECONDS})) || {refusal}
  sleep $((SECONDS < 2 ? 0 : 1)).05
done
exec "$@\""""
    return f"""\
{INTERFACE}
{exports}
{array("serve", ["/bin/bash", "-p", "-c", wait, "ctrain"])}
[ "$RANK" != 0 ] || serve=({server})"""

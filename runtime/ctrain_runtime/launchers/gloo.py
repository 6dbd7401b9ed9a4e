"""What launcher gloo adds to a rank: Horovod's ranks meet without MPI, at a server in the first rank's container."""

from __future__ import annotations

from ctrain_runtime.plan.model import LaunchPlan

JOIN_TIMEOUT_SECONDS = 300  # the first node may still be reading the image; and ranks may load data unevenly

# Horovod's variables of a rank (horovod/common/gloo/gloo_context.cc), which join_gloo exports.
VARIABLES = (
    *("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE"),
    *("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_GLOO_IFACE"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
)


def join(plan: LaunchPlan) -> str:
    """The line that exports the variables, and sets the array `serve`: what precedes the program in the container."""
    return f"join_gloo {plan.size.nodes} {plan.size.ranks_per_node} {JOIN_TIMEOUT_SECONDS}"

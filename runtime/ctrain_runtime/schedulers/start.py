"""The one place that chooses the back end of a plan."""

from __future__ import annotations

from ctrain_runtime import facts
from ctrain_runtime.facts import Cluster
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers import local_script, process, slurm, slurm_script
from ctrain_runtime.schedulers.handle import Handle
from ctrain_runtime.site import Site


def cluster(site: Site) -> Cluster:
    """What the site's scheduler says of itself."""
    return slurm.cluster() if site.scheduler == "slurm" else Cluster()


def gpus(site: Site) -> tuple[str, ...]:
    """What the GPUs of the site are called, by its scheduler or by the driver of this machine: a100, NVIDIA A30 ...

    Raises CtrainError when the scheduler doesn't answer.
    """
    if site.scheduler == "slurm":
        return tuple({part.gpu_type or part.name for part in slurm.partitions_now() if part.gpus})
    return facts.gpu_models()


def prepare(plan: LaunchPlan) -> Launch:
    """The plan as scripts and the command that starts them."""
    return slurm_script.launch(plan) if plan.scheduler == "slurm" else local_script.launch(plan)


def start(launch: Launch) -> Handle:
    """Start it: as a job of its own, or as a process when there is no queue to wait in."""
    queued = launch.argv[0] == "sbatch"
    return slurm.submit(launch) if queued else process.start(launch)

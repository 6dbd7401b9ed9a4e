"""The one place where a run is decided: pure, from data to data. What it can't fulfil it refuses here, in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from ctrain_runtime import lease, time_limit
from ctrain_runtime.errors import (
    ConfigError,
    CtrainError,
    DataError,
    JobError,
    ResourceError,
    SchedulerError,
    UsageError,
)
from ctrain_runtime.facts import Cluster, Facts, Partition
from ctrain_runtime.image import Image
from ctrain_runtime.job import Count, Job
from ctrain_runtime.plan import images
from ctrain_runtime.plan.model import LaunchPlan, Mount, Options
from ctrain_runtime.site import Site

RESUME = "/resume"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Ranks of a node sit in different user namespaces, where Open MPI's vader can't copy between processes directly.
MPI_ENVIRONMENT = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
# On CPUs the cores that compute are those on which a waiting MPI would spin: 84 images/s instead of 26 were seen.
CPU_MPI_ENVIRONMENT = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# Open MPI's mpirun refuses root and more ranks than cores unless told; site `local` starts ranks with it.
LOCAL_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # the same for Open MPI 5
}


@dataclass(frozen=True)
class _Size:
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    partition: str
    time: str


def make(
    job: Job,
    site: Site,
    image: Image,
    options: Options,
    facts: Facts,
    run_directory: Path,
    flat: Optional[Image] = None,
) -> LaunchPlan:
    """The launch plan. Paths in `site` and `options` are absolute already; the run's name is the directory's.

    `flat` is the flattened image that can stand in for `image`, if there is one. Raises UsageError, ResourceError,
    SchedulerError, EngineError or DataError when the plan would not hold, JobError or ConfigError for variables of the
    job or the site that have no proper name.
    """
    size = (
        _size_on_cluster(job, site, options, facts.cluster)
        if site.scheduler == "slurm"
        else _size_here(job, options, facts)
    )
    planned = images.choose(image, flat, options, facts)
    return LaunchPlan(
        run=run_directory.name,
        run_directory=str(run_directory),
        job=job.name,
        site=site.name,
        scheduler=site.scheduler,
        image=planned,
        layers=images.layers(image, options.layers),
        engine=facts.engine,
        launcher=job.launcher,
        mpi=_mpi(job, site, facts.cluster),
        nodes=size.nodes,
        ranks_per_node=size.ranks_per_node,
        world_size=size.nodes * size.ranks_per_node,
        gpus_per_node=size.gpus_per_node,
        cpus_per_rank=size.cpus_per_rank,
        partition=size.partition,
        time=size.time,
        submit=_submit(site, options),
        allocation=facts.cluster.allocation.job_id if facts.cluster.allocation else None,
        command=(*job.command, *options.arguments),
        workdir=job.workdir,
        environment=_environment(job, site, options, run_directory, planned.cuda),
        mounts=_mounts(job, site, options, run_directory),
        lease=lease.place(facts.leases, planned.path, run_directory),
        root=facts.root,
    )


def _size_on_cluster(job: Job, site: Site, options: Options, cluster: Cluster) -> _Size:
    allocation = cluster.allocation
    room = _partition(options.partition or (allocation.partition if allocation else site.partition), cluster)
    place = f"partition {room.name}"
    if allocation:
        place = f"allocation {allocation.job_id}"
        room = replace(room, nodes=allocation.nodes, cpus=allocation.cpus, gpus=allocation.gpus)
    nodes = _said("--nodes", options.nodes, allocation.nodes if allocation else job.resources.nodes)
    _fits(place, "node", room.nodes, "--nodes", nodes)
    gpus = _said("--gpus-per-node", options.gpus_per_node, job.resources.gpus_per_node, room.gpus, least=0)
    _fits(f"a node of {place}", "GPU", room.gpus, "--gpus-per-node", gpus)
    ranks = _said("--ranks-per-node", options.ranks_per_node, job.resources.ranks_per_node, gpus or 1)
    _fits(f"a node of {place}", "CPU core", room.cpus, "--ranks-per-node", ranks)
    return _Size(nodes, ranks, gpus, room.cpus // ranks, room.name, _limit(job, options, room))


def _size_here(job: Job, options: Options, facts: Facts) -> _Size:
    if options.partition:
        raise UsageError("site local has no partitions", "Leave out --partition, or choose a cluster with --site")
    nodes = _said("--nodes", options.nodes, job.resources.nodes)
    gpus = _said("--gpus-per-node", options.gpus_per_node, job.resources.gpus_per_node, facts.gpus, least=0)
    _fits("this machine", "GPU", facts.gpus, "--gpus-per-node", gpus)
    ranks = _said("--ranks-per-node", options.ranks_per_node, job.resources.ranks_per_node, gpus or 1)
    return _Size(nodes, ranks, gpus, 1, "", "")


def _partition(name: str, cluster: Cluster) -> Partition:
    if not cluster.partitions:
        raise SchedulerError("Slurm shows no partition that is up", "Ask the admins, or look with: sinfo")
    if not name:
        return next((p for p in cluster.partitions if p.default), cluster.partitions[0])
    for partition in cluster.partitions:
        if partition.name == name:
            return partition
    known = ", ".join(p.name for p in cluster.partitions)
    raise ResourceError(f"there is no partition {name!r} that is up", f"Partitions: {known}")


def _said(flag: str, option: Optional[int], wanted: Count, auto: int = 1, least: int = 1) -> int:
    """The option if it was given, else what the job wants, where "auto" means `auto`."""
    value = option if option is not None else wanted if isinstance(wanted, int) else auto
    if value < least:
        raise UsageError(f"{flag} {value}: at least {least} is needed")
    return value


def _fits(place: str, what: str, there: int, flag: str, asked: int) -> None:
    if asked > there:
        plural = "" if there == 1 else "s"
        raise ResourceError(
            f"{place} has {there or 'no'} {what}{plural}, {asked} were asked for", f"Largest that fits: {flag} {there}"
        )


def _limit(job: Job, options: Options, partition: Partition) -> str:
    """The time limit. A job's own default gives way to a shorter partition; an explicit --time does not."""
    asked = time_limit.parse_limit(options.time or job.resources.time)
    if asked == 0:
        raise UsageError(f"--time {options.time or job.resources.time}: at least one minute is needed")
    if partition.time_limit is not None and (asked is None or asked > partition.time_limit):
        if options.time:
            raise ResourceError(
                f"partition {partition.name} allows {time_limit.format_limit(partition.time_limit)}, {options.time} was asked for",
                f"Longest that fits: --time {time_limit.format_limit(partition.time_limit)}",
            )
        asked = partition.time_limit
    return "UNLIMITED" if asked is None else time_limit.format_limit(asked)


def _mpi(job: Job, site: Site, cluster: Cluster) -> str:
    """The value of `srun --mpi`: the first of the site's choice that this Slurm offers."""
    if site.scheduler != "slurm":
        return ""
    if job.launcher == "env":
        return "none"
    for flavour in site.mpi:
        if flavour in cluster.mpi:
            return flavour
    raise SchedulerError(
        f"Slurm here can't start MPI ranks by {' or '.join(site.mpi)} (it has: {', '.join(cluster.mpi) or 'nothing'})",
        "Set launcher: env for programs that need no MPI, or ask the admins for the PMIx plugin",
    )


def _submit(site: Site, options: Options) -> tuple[str, ...]:
    comment = options.comment or site.comment
    return (*site.submit, *([f"--comment={comment}"] if comment else []))


def _environment(job: Job, site: Site, options: Options, run_directory: Path, cuda: bool) -> dict[str, str]:
    """What the program sees besides the image's own variables and its rank; later lines win."""
    _check_names(site.env, ConfigError, f"site {site.name}")
    _check_names(job.env, JobError, f"job {job.name}")
    return {
        "PYTHONNOUSERSITE": "1",  # ~/.local would shadow the image's packages
        "PYTHONUNBUFFERED": "1",  # rank 0 is shown live
        "CTRAIN_RUN_DIR": str(run_directory),
        **({"CTRAIN_RESUME": RESUME} if options.resume else {}),
        **(MPI_ENVIRONMENT if job.launcher == "mpi" else {}),
        **(CPU_MPI_ENVIRONMENT if job.launcher == "mpi" and not cuda else {}),
        **(LOCAL_ENVIRONMENT if site.scheduler == "local" else {}),
        **site.env,
        **job.env,
        **_pairs(options.env),
    }


def _check_names(variables: Mapping[str, str], kind: type[CtrainError], whose: str) -> None:
    """A name is written into scripts as it is: anything but a name would be shell code there."""
    for name in variables:
        if not VARIABLE.fullmatch(name):
            raise kind(f"{whose}: env: {name!r} is not the name of a variable", "Use letters, digits and '_'")


def _pairs(texts: tuple[str, ...]) -> Mapping[str, str]:
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not VARIABLE.fullmatch(key):
            raise UsageError(f"--env {text!r} is not NAME=VALUE", "As in: --env NCCL_DEBUG=INFO")
        pairs[key] = value
    return pairs


def _mounts(job: Job, site: Site, options: Options, run_directory: Path) -> tuple[Mount, ...]:
    """The run directory and the user's folder keep their paths inside, so that paths in arguments hold."""
    mounts = [_mount(text) for text in (*site.mounts, *options.mounts)]
    if job.folder:
        mounts.append(Mount(str(job.folder), str(job.folder), read_only=False))
    mounts.append(Mount(str(run_directory), str(run_directory), read_only=False))
    data = options.data or (site.datasets.get(job.data.dataset, "") if job.data else "")
    if data:
        mounts.append(Mount(data, job.data.mount if job.data else "/data", read_only=True))
    elif job.data:
        raise DataError(
            f"job {job.name} needs data set {job.data.dataset!r}, which site {site.name} does not have",
            "Give its folder with --data DIR",
        )
    if options.resume:
        mounts.append(Mount(options.resume, RESUME, read_only=True))
    return tuple(mounts)


def _mount(text: str) -> Mount:
    """SRC, SRC:DST or SRC:DST:ro|rw, as engines take it. A lone SRC keeps its path inside."""
    source, *rest = text.split(":")
    mode = rest.pop() if len(rest) == 2 else "rw"
    if len(rest) > 1 or mode not in ("ro", "rw"):
        raise UsageError(f"--mount {text!r} is not SRC[:DST[:ro]]", "As in: --mount /scratch/me:/scratch:ro")
    return Mount(source, rest[0] if rest else source, mode == "ro")

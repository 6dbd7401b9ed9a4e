"""Compares what a site's file says with the site itself, as far as it can be asked here. What cannot be seen from this
machine is unknown, which is no difference: login nodes may lack the engine, the disks and the libraries of nodes."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ctrain_runtime import gpus, payload, schedulers
from ctrain_runtime.base import command, file_systems, run_files, time_limit
from ctrain_runtime.cluster import machine
from ctrain_runtime.cluster.groups import kinds
from ctrain_runtime.cluster.model import Cluster, Partition
from ctrain_runtime.doctor import Finding
from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError, CtrainError, EngineError
from ctrain_runtime.images.image import Image
from ctrain_runtime.plan.environment import multinode_environment
from ctrain_runtime.plan.make import absolute_patterns
from ctrain_runtime.plan.staging import staging_directory
from ctrain_runtime.run import select_image, site_engine
from ctrain_runtime.run.targets import describe_cluster, limit_threads
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import SelectedSite

Level = Literal["warn", "fail"]
EXAMPLE = "example"  # a partition of the generic sites, for dry runs where there is no scheduler
IN_A_JOB = "Run this check in a job, too"
_SCRIPT = Path(__file__).with_name("nccl_plugin.sh")
_SHARED = frozenset(("lustre", "gpfs", "nfs", "nfs4", "beegfs", "ceph"))
_ORDINARY_NETWORKS = ("", "IB", "Socket")  # NCCL's own, without a plugin
_DRIVER = "libcuda.so.1"  # comes with the node's GPUs


def compare(selected: SelectedSite, image: str = "") -> Iterator[Finding]:
    """One finding for each part of the site that agrees, differs or is unknown; none where its scheduler is not here.

    `image` is one in which NCCL's plugin is looked for.
    """
    site = selected.site
    if site.scheduler not in schedulers.MODULES:
        return  # a finding of check_site
    scheduler = schedulers.get(site.scheduler)
    if not all(map(command.which, scheduler.programs)):
        if image:
            yield Finding("NCCL plugin", "warn", f"unknown: this machine has no {site.scheduler}", IN_A_JOB)
        return
    try:
        cluster, described = scheduler.facts(site), describe_cluster(site)
    except CtrainError as error:
        yield Finding("partitions", "warn", f"unknown: {error.message}", error.hint)
        cluster, described = Cluster(), Cluster()
    else:
        if scheduler.programs and not (cluster.partitions or cluster.closed):
            yield Finding("partitions", "warn", f"unknown: {site.scheduler} names no partition")
    yield from _compare_partitions(selected, cluster, described)
    if cluster.partitions and scheduler.programs:
        yield _compare_mpi(site, cluster)
    in_job = cluster.allocation is not None
    yield from _compare_engine(selected, in_job=in_job)
    yield from _compare_staging(selected, in_job=in_job)
    yield from _compare_plugin(selected, image, in_job=in_job)


def _compare_partitions(selected: SelectedSite, cluster: Cluster, described: Cluster) -> Iterator[Finding]:
    site = selected.site
    here = {part.name: limit_threads(part, site.job_threads_per_core or 0) for part in cluster.partitions}
    closed = {part.name: part.closed for part in cluster.closed}
    agree = []
    for part in described.partitions if here or closed else ():
        if part.name == EXAMPLE:
            continue
        subject, hint = f"partition {part.name}", f"Set by {selected.sources[f'partitions.{part.name}']}"
        if part.name in closed:
            yield Finding(subject, "warn", f"unknown: it is {closed[part.name]}")
        elif part.name not in here:
            yield Finding(subject, "fail", f"differs: not on this cluster, which has {', '.join(here)}", hint)
        elif differences := _least_differences(part, here[part.name], gpus_known="gpus" not in site.not_requested):
            yield Finding(subject, "fail", f"differs: {'; '.join(differences)}", hint)
        else:
            agree.append(part.name)
    if agree:
        yield Finding("partitions", "ok", f"agree with {site.scheduler}: {', '.join(agree)}")
    for name in (*([site.partition] if site.partition else []), *site.partition_order):
        if here and name not in here and name not in closed and name not in site.partitions:
            yield Finding(f"partition {name}", "fail", "differs: not on this cluster, and jobs would ask for it")


def _least_differences(described: Partition, here: Partition, *, gpus_known: bool) -> list[str]:
    """What contradicts, of the kind of nodes that the file describes best: it describes one."""
    return min((list(_differences(described, kind, gpus_known=gpus_known)) for kind in kinds(here)), key=len)


def _differences(described: Partition, here: Partition, *, gpus_known: bool) -> Iterator[str]:
    """What contradicts. Nodes do not: some may be down, and a file may name fewer than there are, as a job may have."""
    for name in ("cpus", "min_nodes", "max_nodes"):
        own, real = getattr(described, name), getattr(here, name)
        if own and real and own != real:
            yield f"{name} {own}, here {real}"
    if gpus_known and described.gpus != here.gpus:
        yield f"gpus {described.gpus}, here {here.gpus}"
    limit, real_limit = described.time_limit, here.time_limit
    if limit is not None and real_limit is not None and limit != real_limit:
        yield f"time_limit {time_limit.format_limit(limit)}, here {time_limit.format_limit(real_limit)}"
    if described.by_nodes and here.by_nodes and described.by_nodes != here.by_nodes:
        yield f"time_limit by nodes, here {', '.join(map(str, here.by_nodes))}"
    if described.arch and here.arch and described.arch != here.arch:
        yield f"arch {described.arch}, here {here.arch}"
    own_gpu, real_gpu = gpus.identify(described.gpu_type), gpus.identify(here.gpu_type)
    if own_gpu.name and real_gpu.name and (own_gpu.model or own_gpu.name) != (real_gpu.model or real_gpu.name):
        yield f"gpu_type {own_gpu.name}, here {real_gpu.name}"


def _compare_mpi(site: Site, cluster: Cluster) -> Finding:
    offered = [flavour for flavour in site.mpi if flavour in cluster.mpi]
    if offered:
        return Finding("mpi", "ok", f"{offered[0]} is offered")
    text = f"differs: none of {', '.join(site.mpi)} is offered here ({', '.join(cluster.mpi) or 'nothing is'})"
    return Finding("mpi", "fail", text, "Set `mpi` in a site file, or use launcher env or torchrun")


def _compare_engine(selected: SelectedSite, *, in_job: bool) -> Iterator[Finding]:
    """The engine of the file against the one on PATH here, or that its modules load."""
    described = selected.site.engine
    if not (described.path and described.version):
        return  # the one on PATH is asked anew for each run
    engine = Engine("", described.path, described.version)
    script = f'{apptainer.load_modules(engine, described.modules)}command -v "$1"; "$1" --version'
    argv = ["/bin/bash", "-p", "-c", script, "ctrain", described.path]
    environ = apptainer.clean_environ(os.environ)
    try:
        output = command.run(argv, env=environ, check=False).stdout.strip()
    except CtrainError as error:
        output = error.message
    real = apptainer.read_banner(described.path, output.splitlines()[-1] if output else "")
    planned = f"{described.path} {described.version}"
    if not output or not real.version[:1].isdigit():
        word, level = _unseen(in_job=in_job)
        yield Finding("engine", level, f"{planned}: {word}: not on PATH here, nor do its modules load it", IN_A_JOB)
    elif real.version != described.version:
        text = f"{planned}: differs: here {real.name} {real.version}"
        yield Finding("engine", "fail", text, f"Set by {selected.sources['engine']}")
    else:
        yield Finding("engine", "ok", f"{planned}, as here")


def _compare_staging(selected: SelectedSite, *, in_job: bool) -> Iterator[Finding]:
    try:
        directory = staging_directory(selected.site)
    except CtrainError as error:
        yield Finding("staging", "fail", error.message, error.hint)
        return
    if not directory:
        return
    if not Path(directory).is_dir():
        word, level = _unseen(in_job=in_job)
        yield Finding("staging", level, f"{directory}: {word}: not on this machine", IN_A_JOB)
        return
    kind = file_systems.mount_of(Path(directory)).kind
    if kind in _SHARED or kind == "tmpfs":
        problem = "memory of the node" if kind == "tmpfs" else "shared by all nodes"
        text = f"{directory}: differs: it is {problem} ({kind}), not a disk of the node"
        yield Finding("staging", "fail", text, f"Set by {selected.sources['staging']}")
    else:
        yield Finding("staging", "ok", f"{directory} is on {kind}")


def _compare_plugin(selected: SelectedSite, reference: str, *, in_job: bool) -> Iterator[Finding]:
    """The network plugin, where the site needs one, and its libraries: in a container, since the host has others."""
    site = selected.site
    needed = site.nccl_network not in _ORDINARY_NETWORKS or "NCCL_NET_PLUGIN" in {**site.env, **site.env_multinode}
    if not needed and not reference:
        return
    if not reference:
        hint = "ctrain site check --image IMAGE looks for it in a container of that image"
        yield Finding("NCCL plugin", "warn", "unknown: it has to be looked for in an image", hint)
        return
    try:
        image, _ = select_image.select((reference,), selected, lambda _what, _progress: None)
    except CtrainError as error:
        yield Finding("image", "fail", error.message, error.hint)
        return
    try:
        lines = _examine_plugin(site, site_engine.find(site)[0], image)
    except ConfigError as error:
        yield Finding("NCCL plugin", "fail", error.message, error.hint)
        return
    except CtrainError as error:
        word, level = _unseen(in_job=in_job)
        yield Finding("NCCL plugin", level, f"{word}: {error.message}", error.hint or IN_A_JOB)
        return
    plugin = next((line.partition(" ")[2] for line in lines if line.startswith("plugin ")), "")
    lacking = [line.partition(" ")[2] for line in lines if line.startswith("lacks ")]
    if not machine.count_gpus():
        lacking = [name for name in lacking if name != _DRIVER]
    if not plugin:
        text = f"differs: neither {image.manifest.name} nor the site's mounts have one"
        yield Finding("NCCL plugin", "fail" if needed else "ok", text if needed else "none, and none is needed")
    elif lacking:
        hint = "Mount them, or put their directories first on LD_LIBRARY_PATH: `mounts`, `env`"
        yield Finding("NCCL plugin", "fail", f"{plugin}: differs: lacks {', '.join(lacking)}", hint)
    elif "unknown" in lines:
        yield Finding("NCCL plugin", "warn", f"{plugin}: its libraries are unknown: the image has no ldd")
    else:
        yield Finding("NCCL plugin", "ok", f"{plugin}, with all its libraries")


def _examine_plugin(site: Site, engine: Engine, image: Image) -> list[str]:
    """What the script prints in a container with the site's mounts and variables. Raises EngineError."""
    lacking = [path for path in (mount.partition(":")[0] for mount in site.mounts) if not os.access(path, os.F_OK)]
    if lacking:
        raise EngineError(f"this machine lacks what the site mounts: {', '.join(lacking)}")
    software = image.manifest.software
    patterns = absolute_patterns(site, "host_libraries")
    libraries = [file for pattern in patterns for file in sorted(glob.glob(pattern))]  # noqa: PTH207  # absolute
    argv = apptainer.exec_argv(
        engine,
        as_root=os.geteuid() == 0,
        cuda="cuda" in software,
        rocm="rocm" in software,
        unmounted="cwd,home,tmp",
        binds=site.mounts,
    )
    argv += ["--containlibs", ",".join(libraries)] if libraries else []
    variables = {**site.env, **multinode_environment(site, software)}
    family = {f"{engine.name.upper()}ENV_{name}": value for name, value in variables.items()}
    directories = absolute_patterns(site, "library_paths")
    paths = ["paths", " ".join(reversed(directories))] if directories else []
    inside = ["/bin/sh", "-c", payload.text(run_files.INSIDE_SCRIPT), run_files.INSIDE_SCRIPT, "", "", *paths, "run"]
    script = ["/bin/sh", "-c", _SCRIPT.read_text(encoding="utf-8")]
    environ = {**apptainer.clean_environ(os.environ), **family}
    result = command.run([*argv, str(image.path), *inside, *script], env=environ, check=False)
    if result.code:
        raise EngineError(f"no container starts here: {apptainer.last_error(result.stderr) or result.code}")
    return result.stdout.splitlines()


def _unseen(*, in_job: bool) -> tuple[str, Level]:
    """What it means that this machine lacks something: in a job it is a node, which must have it."""
    return ("differs", "fail") if in_job else ("unknown", "warn")

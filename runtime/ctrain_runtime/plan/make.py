"""The one place where a run is decided: pure, from data to data. Refuses unsatisfiable requests in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Optional

from ctrain_runtime.cluster.facts import Facts
from ctrain_runtime.errors import ConfigError, UsageError
from ctrain_runtime.gpus import Maker, maker
from ctrain_runtime.images.image import Image
from ctrain_runtime.job import Job
from ctrain_runtime.plan import binding, mpi
from ctrain_runtime.plan.environment import make_environment, multinode_environment, passed_names, secret_names
from ctrain_runtime.plan.image_choice import choose_image, plan_user_layers
from ctrain_runtime.plan.model import DataCopy, Expectation, LaunchPlan, Options
from ctrain_runtime.plan.mounts import data_mount, make_mounts
from ctrain_runtime.plan.mpi_start import choose_task_starter, start_mpi
from ctrain_runtime.plan.preflight import plan_preflight
from ctrain_runtime.plan.size import JobSize
from ctrain_runtime.plan.staging import plan_staging
from ctrain_runtime.site.model import Site
from ctrain_runtime.store import lease


def make_plan(
    job: Job,
    site: Site,
    image: Image,
    options: Options,
    facts: Facts,
    size: JobSize,
    run_directory: Path,
    flat: Optional[Image] = None,
    data_copy: Optional[DataCopy] = None,
    estimate: Optional[Expectation] = None,
    unproven: Callable[[LaunchPlan], str] = lambda _plan: "unknown",
) -> LaunchPlan:
    """The launch plan. Paths in `site` and `options` are absolute already; the run's name is the directory's.

    `flat` is the flattened image that can replace `image`, if there is one; `unproven` tells why no preflight of such a
    run has passed here ("": one has). The job's launcher is not `auto`. Raises
    UsageError, SchedulerError, EngineError or DataError if the plan would fail, JobError or ConfigError for invalid
    names of variables of the job or the site, and for a staging directory that is not absolute.
    """
    _check_required(site, options)
    planned = choose_image(image, flat, options, facts, gpus=_gpu_maker(size, facts))
    software, launcher, flavour = image.manifest.software, job.launcher, ""
    if launcher == "mpi":
        launcher, flavour = start_mpi(site, facts.cluster, size.nodes, software)
    tasks = {"torchrun": size.nodes, "node": size.nodes, "mpirun": 1}.get(launcher, size.nodes * size.ranks_per_node)
    in_world = size.nodes * size.ranks_per_node > 1 and launcher != "node" and not job.independent
    horovod, on_gpus = "horovod" in software and in_world, planned.cuda or planned.rocm or "xpu" in software
    staging = plan_staging(options.stage, site, planned, size.nodes, interactive=options.interactive)
    variables = mpi.environment(launcher, flavour, on_gpus, horovod, "hpcx" in software)
    data = data_mount(job, site, options)
    across = multinode_environment(site, software) if size.nodes > 1 and size.partition else {}
    environment, origins = make_environment(job, site, options, run_directory, variables, across)
    of_mpi = absolute_patterns(site, "mpi_library_paths") if launcher == "mpi" else ()
    ranks = size.nodes * size.ranks_per_node
    cpu_bind = options.cpu_bind or site.cpu_bind or size.cpu_bind
    listed, cores = binding.fit(cpu_bind, size.ranks_per_node, one_task=tasks < ranks)
    plan = LaunchPlan(
        run=run_directory.name,
        run_directory=str(run_directory),
        job=job.name,
        site=site.name,
        scheduler=site.scheduler,
        image=planned,
        layers=plan_user_layers(image, options.layers),
        engine=facts.engine,
        launcher=launcher,
        mpi=flavour,
        nodes=size.nodes,
        ranks_per_node=size.ranks_per_node,
        tasks=tasks,
        ranks_per_task=size.nodes * size.ranks_per_node // tasks,
        gpus_per_node=size.gpus_per_node,
        cpus_per_rank=size.cpus_per_rank,
        cores_per_rank=min(size.cores_per_rank, cores or size.cores_per_rank),
        memory=size.memory,
        partition=size.partition,
        time_limit=size.time_limit,
        cpu_bind=options.cpu_bind or listed,
        settings={**({"comment": site.comment} if site.comment else {}), **dict(options.settings)},
        options=(*site.submit, *options.scheduler_options),
        allocation=facts.cluster.allocation.job_id if facts.cluster.allocation else None,
        in_step=bool(facts.cluster.allocation and facts.cluster.allocation.in_step),
        command=(*job.command, *options.arguments),
        workdir=job.workdir,
        environment=environment,
        origins=origins,
        modules=site.engine.modules,
        passed=passed_names(options.env),
        mounts=make_mounts(job, site, options, run_directory),
        staging=staging.directory,
        stages_image=staging.copies,
        staging_reason=staging.reason,
        data=data.source if data else "",
        resume=options.resume,
        lease=lease.lease_path(facts.lease_dir, planned.path, run_directory),
        as_root=facts.is_root,
        private=not site.share_runs or bool(secret_names(environment)),
        interactive=options.interactive,
        task_starter=choose_task_starter(site),
        cluster=facts.cluster.name,
        gpu_order=check_gpu_order(site) if size.gpus_per_node else (),
        independent=job.independent,
        not_requested=_not_requested(site, options),
        address_suffix=check_address_suffix(site),
        host_libraries=absolute_patterns(site, "host_libraries"),
        library_paths=(*of_mpi, *absolute_patterns(site, "library_paths")),
        umask=facts.umask,
        data_copy=data_copy,
        estimate=estimate,
    )
    return replace(plan, preflight=plan_preflight(plan, site, options.preflight, unproven))


def _gpu_maker(size: JobSize, facts: Facts) -> Optional[Maker]:
    """Whose GPUs the run uses; None without GPUs."""
    if not size.gpus_per_node:
        return None
    types = {part.name: part.gpu_type for part in facts.cluster.partitions}
    return maker(types[size.partition]) if size.partition in types else facts.gpu_maker


def _not_requested(site: Site, options: Options) -> tuple[str, ...]:
    """What the job does not ask for; a partition that the user names is."""
    return tuple(what for what in site.not_requested if not (what == "partition" and options.partition))


def check_address_suffix(site: Site) -> str:
    """The key, which becomes part of a word of scripts. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9.-]*", site.address_suffix):
        problem = f"site {site.name}: address_suffix {site.address_suffix!r} is no part of a host's name"
        raise ConfigError(problem, "As in: address_suffix: .hsn.example.org")
    return site.address_suffix


def absolute_patterns(site: Site, key: str) -> tuple[str, ...]:
    """The paths of a key, which become words of scripts. Raises ConfigError."""
    paths: tuple[str, ...] = getattr(site, key)
    for path in paths:
        if not re.fullmatch(r"/[A-Za-z0-9._/+*?-]*", path):
            problem = f"site {site.name}: {key}: {path!r} is not an absolute path of letters, digits and ._+-*?/"
            raise ConfigError(problem, f"As in: {key}: [/usr/lib64]")
    return paths


def check_gpu_order(site: Site) -> tuple[int, ...]:
    """The key. Raises ConfigError."""
    if sorted(site.gpu_order) != list(range(len(site.gpu_order))):
        problem = f"site {site.name}: gpu_order must hold each GPU of a node once, not {list(site.gpu_order)}"
        raise ConfigError(problem, "As in: gpu_order: [3, 2, 1, 0]")
    return site.gpu_order


def _check_required(site: Site, options: Options) -> None:
    """Raise UsageError if an option is missing without which the site rejects jobs."""
    given = {name for name, _ in options.settings} | ({"comment"} if site.comment else set())
    further = (*site.submit, *options.scheduler_options)
    for name in site.required:
        if name not in given and not any(option.startswith(f"--{name}=") for option in further):
            hint = f"Pass --{name} VALUE, or set `submit: [--{name}=VALUE]` in a site file of your own"
            raise UsageError(f"site {site.name} requires --{name}", hint)

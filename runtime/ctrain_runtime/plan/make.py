"""The one place where a run is decided: pure, from data to data. Refuses unsatisfiable requests in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from ctrain_runtime.base.time_limit import parse_seconds
from ctrain_runtime.cluster.facts import Facts
from ctrain_runtime.errors import ConfigError, UsageError
from ctrain_runtime.gpus import Maker, maker
from ctrain_runtime.images.image import Image
from ctrain_runtime.job import Job
from ctrain_runtime.plan import binding, mpi
from ctrain_runtime.plan.environment import make_environment, multinode_environment, passed_names, secret_names
from ctrain_runtime.plan.image_choice import choose_image
from ctrain_runtime.plan.model import (
    Checks,
    Environment,
    Inputs,
    LaunchPlan,
    Mount,
    Mounts,
    Placement,
    PlannedImage,
    Program,
    count_tasks,
)
from ctrain_runtime.plan.mounts import data_mount, make_mounts
from ctrain_runtime.plan.mpi_start import choose_task_starter, start_mpi
from ctrain_runtime.plan.options import Options
from ctrain_runtime.plan.preflight import plan_preflight
from ctrain_runtime.plan.profile import variables as profile_variables
from ctrain_runtime.plan.size import JobFit, JobSize
from ctrain_runtime.plan.staging import plan_data_copy, plan_staging
from ctrain_runtime.site.model import Site


def make_plan(
    job: Job,
    site: Site,
    image: Image,
    options: Options,
    facts: Facts,
    fit: JobFit,
    inputs: Inputs,
    run_directory: Path,
    digest_and_size: Callable[[Mount], tuple[str, int]] = lambda _mount: ("", 0),
    unproven: Callable[[LaunchPlan], str] = lambda _plan: "unknown",
) -> LaunchPlan:
    """The launch plan. Paths in `site` and `options` are absolute already; the run's name is the directory's.

    `digest_and_size` reads a data set that is to be copied, `unproven` tells why no preflight of such a run has passed
    here ("": one has). The job's launcher is not `auto`. Raises UsageError, ResourceError, SchedulerError, EngineError
    or DataError if the plan would fail, JobError or ConfigError for invalid names of variables of the job or the site,
    and for a staging directory that is not absolute.
    """
    _check_required(site, options)
    software = image.manifest.software
    planned = choose_image(image, inputs, facts, run_directory, gpus=_gpu_maker(fit, facts))
    placement = _placement(site, options, inputs, facts, fit)
    program = _program(job, site, options, facts, placement, fit.size.nodes, software)
    environment = _environment(job, site, options, run_directory, fit, planned, program, software)
    staging = plan_staging(options.stage, site, planned, fit.size.nodes, interactive=job.interactive)
    data, mounts = data_mount(job, site, options), make_mounts(job, site, options, inputs, run_directory)
    cpu_bind = options.cpu_bind or site.cpu_bind or fit.cpu_bind
    one_task = count_tasks(program.launcher, fit.size) < fit.size.world_size
    listed, cores = binding.fit(cpu_bind, fit.size.ranks_per_node, one_task=one_task)
    size = replace(fit.size, cores_per_rank=min(fit.size.cores_per_rank, cores or fit.size.cores_per_rank))
    gpus = facts.gpus if "cuda" in software else ()
    plan = LaunchPlan(
        run=run_directory.name,
        run_directory=str(run_directory),
        private=not site.share_runs or bool(secret_names(environment.variables)),
        job=job.name,
        site=site.name,
        scheduler=site.scheduler,
        image=planned,
        program=program,
        size=size,
        placement=replace(placement, cpu_bind=options.cpu_bind or listed),
        environment=environment,
        mounts=Mounts(mounts, data=data.source if data else "", resume=inputs.resume, code=inputs.code),
        staging=staging,
        notify=inputs.notify,
        checks=_estimate(job, site, program.command, size, gpus) if options.estimate else Checks(),
    )
    if options.stage_data:  # last: a data set may have to be read whole
        plan = replace(plan, staging=replace(staging, data_copy=plan_data_copy(data, site, digest_and_size)))
    preflight = plan_preflight(plan, site, options.preflight, unproven)
    return replace(plan, checks=replace(plan.checks, preflight=preflight))


def _program(
    job: Job,
    site: Site,
    options: Options,
    facts: Facts,
    placement: Placement,
    nodes: int,
    software: Mapping[str, str],
) -> Program:
    launcher, flavour = job.launcher, ""
    retries, until_done = _retries(job, options, is_queued=placement.is_queued)
    if launcher == "mpi":
        launcher, flavour = start_mpi(site, facts.cluster, nodes, software)
    return Program(
        command=job.command,
        workdir=job.workdir,
        launcher=launcher,
        mpi=flavour,
        task_starter=choose_task_starter(site),
        independent=job.independent,
        interactive=job.interactive,
        as_root=facts.is_root,
        umask=facts.umask,
        restarts=_restarts(job, options),
        parameters=job.parameters,
        on_hang=_on_hang(job, options),
        hang_after=_hang_after(job, options),
        retries=retries,
        until_done=until_done,
    )


def _estimate(job: Job, site: Site, command: Sequence[str], size: JobSize, gpus: Sequence[str]) -> Checks:
    from ctrain_runtime.plan.expectation import expect  # only here: start-up is measured

    estimate, notes = expect(job, command, size, gpus, site.expected_bandwidth.nccl)
    return Checks(estimate=estimate, notes=notes)


def _placement(site: Site, options: Options, inputs: Inputs, facts: Facts, fit: JobFit) -> Placement:
    allocation = facts.cluster.allocation
    return Placement(
        partition=fit.partition,
        constraint=fit.constraint,
        allocation=allocation.job_id if allocation else None,
        in_step=bool(allocation and allocation.in_step),
        cluster=facts.cluster.name,
        settings={**({"comment": site.comment} if site.comment else {}), **options.settings},
        options=(*site.submit, *options.scheduler_options),
        not_requested=_not_requested(site, options),
        gpu_order=check_gpu_order(site) if fit.size.gpus_per_node else (),
        address_suffix=check_address_suffix(site),
        after=inputs.after,
        after_any=inputs.after_any,
    )


def _environment(
    job: Job,
    site: Site,
    options: Options,
    run_directory: Path,
    fit: JobFit,
    planned: PlannedImage,
    program: Program,
    software: Mapping[str, str],
) -> Environment:
    launcher = program.launcher
    in_world = fit.size.world_size > 1 and launcher != "node" and not program.independent
    horovod, on_gpus = "horovod" in software and in_world, planned.cuda or planned.rocm or "xpu" in software
    of_mpi = mpi.environment(launcher, program.mpi, on_gpus, horovod, "hpcx" in software)
    across = multinode_environment(site, software) if fit.size.nodes > 1 and fit.partition else {}
    profile = profile_variables(options, fit.size.world_size)
    is_alone = program.independent or program.interactive or fit.size.world_size < 2
    torch = software.get("torch", "") if planned.cuda and not is_alone else ""
    variables, origins = make_environment(job, site, options, run_directory, of_mpi, across, profile, torch)
    libraries = absolute_patterns(site, "mpi_library_paths") if launcher == "mpi" else ()
    return Environment(
        variables=variables,
        origins=origins,
        passed=passed_names(options.env),
        modules=site.engine.modules,
        host_libraries=absolute_patterns(site, "host_libraries"),
        library_paths=(*libraries, *absolute_patterns(site, "library_paths")),
    )


def _gpu_maker(fit: JobFit, facts: Facts) -> Optional[Maker]:
    """Whose GPUs the run uses; None without GPUs."""
    if not fit.size.gpus_per_node:
        return None
    return maker(fit.chosen.gpu_type) if fit.chosen else facts.gpu_maker


def _restarts(job: Job, options: Options) -> int:
    """The number of restarts: the command line's, else the job's. Raises UsageError."""
    if options.restarts is not None and options.restarts < 0:
        raise UsageError(f"--restarts must be an integer of at least 0, not {options.restarts}")
    restarts = job.restarts if options.restarts is None else options.restarts
    if options.spare_nodes and not restarts:
        raise UsageError("--spare-nodes is for restarts, of which there are none", "Add --restarts N")
    return restarts


def _on_hang(job: Job, options: Options) -> str:
    """What is done with a run that hangs: the command line's, else the job's. Raises UsageError."""
    action = options.on_hang or job.on_hang
    if action == "restart" and not _restarts(job, options):
        where = "--on-hang" if options.on_hang else f"{job.where}: on_hang:"
        raise UsageError(f"{where} restart is for runs with restarts, of which there are none", "Add --restarts N")
    return action


def _hang_after(job: Job, options: Options) -> int:
    """The seconds of silence after which the run hangs: the command line's, else the job's; 0: learned. Raises
    UsageError."""
    text, where = options.hang_after or job.hang_after, "--hang-after"
    if not options.hang_after:
        where = f"{job.where}: hang_after"
    try:
        return parse_seconds(text) if text else 0
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.hint) from error


def _retries(job: Job, options: Options, *, is_queued: bool) -> tuple[int, bool]:
    """How often the job may be queued again: by the command line, else by the job, whose keys hold where there is a
    queue. Raises UsageError."""
    if options.retries is not None and options.retries < 0:
        raise UsageError(f"--retries must be an integer of at least 0, not {options.retries}")
    if options.retries and options.until_done:
        raise UsageError("--retries and --until-done contradict each other", "Leave out one of them")
    if options.retries is None and not options.until_done:
        retries = job.retries if is_queued else 0
        return (0, True) if isinstance(retries, str) else (retries, False)
    if not is_queued and (options.retries or options.until_done):
        option = "--until-done" if options.until_done else "--retries"
        raise UsageError(f"{option} needs a queue: nothing queues this run again", "Remove it; --restarts works here")
    return options.retries or 0, options.until_done


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
    given = options.settings.keys() | ({"comment"} if site.comment else set())
    further = (*site.submit, *options.scheduler_options)
    for name in site.required:
        if name not in given and not any(option.startswith(f"--{name}=") for option in further):
            hint = f"Pass --{name} VALUE, or set `submit: [--{name}=VALUE]` in a site file of your own"
            raise UsageError(f"site {site.name} requires --{name}", hint)

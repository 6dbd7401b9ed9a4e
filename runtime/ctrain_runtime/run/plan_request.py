"""From a request to a launch, for every verb that starts runs. Reads everything that a plan is made from."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from ctrain_runtime import job, launchers
from ctrain_runtime.cluster import facts
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ImageNotFound, ResourceError, UsageError
from ctrain_runtime.images import image, trust
from ctrain_runtime.launchers import independent
from ctrain_runtime.launchers.translate import NODE, TranslatedCommand, check, keep, translate_command
from ctrain_runtime.plan import site_notes, sizing
from ctrain_runtime.plan.admission import NodeFacts
from ctrain_runtime.plan.launcher_choice import HOROVOD, Imports, choose, refuse_alone
from ctrain_runtime.plan.make import make_plan
from ctrain_runtime.plan.model import LaunchPlan, Mount
from ctrain_runtime.plan.mounts import site_mounts
from ctrain_runtime.plan.options import Options, parse_env
from ctrain_runtime.plan.size import JobFit
from ctrain_runtime.plan.size_request import make_size_request, read_options
from ctrain_runtime.run import (
    accelerate_config,
    directory,
    inputs,
    outside_paths,
    parameters,
    parent_directories,
    preflight_results,
    select_image,
    targets,
    typed_command,
)
from ctrain_runtime.run.imports import read_imports
from ctrain_runtime.run.request import Prepared, Request
from ctrain_runtime.run.targets import Notes
from ctrain_runtime.schedulers.protocol import Scheduler

if TYPE_CHECKING:  # start-up is measured
    from ctrain_runtime.images.pull import Report

IMAGE = "CTRAIN_IMAGE"  # set by module files
ALWAYS_IMPORTED = {"horovodrun": Imports("horovodrun's program", frozenset({HOROVOD}))}


@dataclass(frozen=True)
class _Target:
    """Where a run fits, and its image. `is_here` is false for a dry run on a machine that is not the site's."""

    cluster: Cluster
    fit: JobFit
    nodes: NodeFacts
    image: image.Image
    notes: tuple[str, ...]
    is_here: bool


def plan_request(
    request: Request,
    scheduler: Scheduler,
    cluster: Callable[[], Cluster],
    engine: Callable[[], tuple[Engine, Notes]],
) -> Prepared:
    """The launch of a request, which nothing has started. `cluster` and `engine` wait for what the scheduler and the
    engine answer. Raises CtrainError."""
    request, replaced = _without_replaced(request, scheduler)
    site = request.site.site
    planned, translated = _job(request)
    target = _target(request, scheduler, cluster, planned, translated)
    check(translated, planned.launcher, target.fit.size.nodes, target.fit.size.world_size)
    imported = ALWAYS_IMPORTED.get(translated.by) or read_imports(planned)
    known = (target.image.manifest.software, site, target.cluster, target.fit.size)
    of_line = request.options.command if request.options.job else ()
    of_parameters = () if request.given else parameters.words(planned)
    choice = choose(planned.launcher, imported, *known, independent=planned.independent)
    planned = replace(
        planned,
        launcher=choice.launcher,
        independent=choice.independent,
        command=(*translated.prefix, *planned.command, *of_parameters, *of_line),
    )
    while True:
        plan, assumed = _plan(request, planned, translated.env, target, *engine())
        refuse_alone(imported, plan)
        launch = scheduler.render(plan, launchers.make_task(plan, scheduler.identity(plan)))
        if request.dry_run or directory.reserve(plan):
            break  # else another submission of this second has taken the name
    notes = (*choice.notes, *translated.notes, *accelerate_config.notes(translated), *replaced, *assumed, *target.notes)
    return Prepared(launch, notes, _image_source(request))


def _without_replaced(request: Request, scheduler: Scheduler) -> tuple[Request, tuple[str, ...]]:
    """The request without the site's options of the scheduler that the command line gives anew, and a note on each:
    they follow ctrain's own in the script, where of what is given twice the last counts."""
    site = request.site.site
    given = dict(request.options.settings)
    given.update({"partition": request.options.partition} if request.options.partition else {})
    names = {option: set(read_options((option,), scheduler.short_options)) & given.keys() for option in site.submit}
    kept = tuple(option for option in site.submit if not names[option])
    notes = (
        f"--{name} {given[name]} replaces {option} of site {site.name}" for option in names for name in names[option]
    )
    return replace(request, site=replace(request.site, site=replace(site, submit=kept))), tuple(notes)


def _target(
    request: Request,
    scheduler: Scheduler,
    answer: Callable[[], Cluster],
    planned: job.Job,
    translated: TranslatedCommand,
) -> _Target:
    """The nodes and the image."""
    site = request.site.site
    cluster, elsewhere = targets.complete(answer, site, dry_run=request.dry_run)
    if translated.hostfile and not (request.options.nodes or translated.nodes or cluster.allocation):
        problem = f"{translated.hostfile}: ctrain chooses the hosts, and does not read the file"
        raise UsageError(problem, "Pass how many: --nodes N")
    selected_by = read_options((*site.submit, *request.options.scheduler_options), scheduler.short_options)
    requested = make_size_request(request.options, planned, cluster, translated.ranks, selected_by)
    settings = {**request.options.settings, **selected_by}
    hosts, excluded = (scheduler.hosts(settings.get(name, "")) for name in ("nodelist", "exclude"))
    requested = replace(requested, hosts=hosts, excluded=excluded)
    select = functools.cache(lambda: _image(request, planned))
    try:
        fit = sizing.fit(requested, cluster, site, lambda: select()[0].manifest)
    except ResourceError as error:
        origin = _resources_of_file(planned, request.options, translated.numbers)
        raise ResourceError(f"{error.message}{origin}", error.hint) from error
    selected, notes = select()
    nodes = targets.find_nodes(fit)
    admitted = select_image.admit(selected, nodes, request.site)
    return _Target(cluster, fit, nodes, selected, (*elsewhere, *fit.notes, *notes, *admitted), not elsewhere)


def _resources_of_file(planned: job.Job, options: Options, numbers: str) -> str:
    """The resources that job.yaml, or a command's own options (`numbers`), ask for and the command line leaves to them,
    for complaints; "" without any."""
    keys = ("nodes", "gpus_per_node", "ranks_per_node")
    own = {key: getattr(planned.resources, key) for key in keys if getattr(options, key) is None}
    given = [f"{key}: {value}" for key, value in own.items() if value != getattr(job.Resources(), key)]
    origin = f"{planned.file}: resources: {', '.join(given)}" if planned.file else numbers
    return f" ({origin})" if given and origin else ""


def _plan(
    request: Request, planned: job.Job, env: tuple[str, ...], target: _Target, engine: Engine, notes: Notes
) -> tuple[LaunchPlan, tuple[str, ...]]:
    """The plan, and notes. `env` are variables that the job's command would set, as of --env."""
    site = request.site.site
    detected = facts.detect_facts(target.cluster, target.image, engine, target.nodes.gpus)
    flat = image.find_flat_variant(target.image) if detected.ignores_layers else None
    if flat:
        image.check(flat, target.nodes.arch)
        trust.require_trusted(flat, site)
    parent = parent_directories.of_site(site)
    read, of_inputs = inputs.read(request, planned, flat, parent, target.cluster)
    options = replace(request.options, env={**parse_env(env), **request.options.env})
    run = directory.new_run_path(parent, planned.name, options.name)
    plan = make_plan(
        *(planned, site, target.image, options, detected, target.fit, read, run),
        digest_and_size=lambda mount: _digest_and_size(mount, request.report),
        unproven=preflight_results.unproven,
    )
    _check_passed(request.options.env)
    if target.is_here:
        of_nodes = [mount.source for mount in site_mounts(site)] if plan.placement.partition else ()
        directory.check_mount_sources(plan, of_nodes)
        notes = (*notes, *outside_paths.notes(plan))
    of_site = site_notes.notes(plan, site, target.cluster, target.image.manifest.software)
    return plan, (*notes, *plan.checks.notes, *of_inputs, *of_site, *independent.notes(plan))


def _digest_and_size(mount: Mount, report: Report) -> tuple[str, int]:
    from ctrain_runtime.run import data_copy  # reads digests as those of foreign images

    return data_copy.digest_and_size(mount, report)


def _check_passed(env: Mapping[str, Optional[str]]) -> None:
    """Refuse --env NAME of a variable that this shell does not have: the program would miss it hours later."""
    missing = next((name for name, value in env.items() if value is None and name not in os.environ), None)
    if missing:
        raise UsageError(f"--env {missing}: not set in this shell", f"Export it, or pass --env {missing}=VALUE")


def _job(request: Request) -> tuple[job.Job, TranslatedCommand]:
    """The job, with the launcher of the command line or of its command; and what became of its command."""
    options = request.options
    if request.given:
        return request.given, TranslatedCommand(request.given.command)
    if options.job:
        planned = job.find(options.job)
        translated = _translate(planned.command, options.launcher or planned.launcher, planned.independent, options)
    else:
        translated = _translate(tuple(options.command), options.launcher, request.interactive, options)
        planned = job.from_command(translated.command, Path.cwd(), request.job_name)
        typed_command.check(translated.command, Path(planned.workdir))
    planned = parameters.with_settings(planned, options.parameters, options.parameter_style)
    resources = replace(
        planned.resources,
        nodes=translated.nodes or planned.resources.nodes,
        ranks_per_node=translated.ranks_per_node or planned.resources.ranks_per_node,
    )
    independent = options.independent or planned.independent
    if independent and options.launcher not in ("", "auto", "env"):
        raise UsageError(f"independent ranks have no launcher {options.launcher}", "Leave out --launcher")
    launcher = "env" if independent else options.launcher or translated.launcher or planned.launcher
    planned = replace(planned, launcher=launcher, independent=independent, interactive=request.interactive)
    return replace(planned, command=translated.command, resources=resources), translated


def _translate(command: tuple[str, ...], launcher: str, independent: bool, options: Options) -> TranslatedCommand:
    """A command that is translated, unless each task or each node runs it as it is."""
    if independent or options.independent or not command:
        return TranslatedCommand(command)
    return keep(command, requested=True) if launcher == NODE else translate_command(command)


def _image(request: Request, planned: job.Job) -> tuple[image.Image, tuple[str, ...]]:
    reference = request.options.image or os.environ.get(IMAGE)
    references = (reference,) if reference else planned.images
    if not references:
        raise UsageError("no image given", "Pass --image NAME; list images with: ctrain images")
    try:
        how = {"again": request.options.pull, "dry_run": request.dry_run}
        return select_image.select(references, request.site, request.report, **how)
    except ImageNotFound as error:
        here = f"For the path in this directory: --image ./{references[0]}" if Path(references[0]).exists() else ""
        raise ImageNotFound(f"{error.message}{_image_source(request)}", here or error.hint) from error


def _image_source(request: Request) -> str:
    """The origin of an image's name that is not from the command line: users forget which modules they have loaded."""
    return f" (from {IMAGE})" if os.environ.get(IMAGE) and not request.options.image else ""

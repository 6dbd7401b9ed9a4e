"""From the directory of a run to the request that runs it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.errors import CtrainError, DataError, UsageError
from ctrain_runtime.job import Dataset, Job, Resources
from ctrain_runtime.plan.environment import MASK
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.mounts import site_mounts
from ctrain_runtime.plan.options import Options
from ctrain_runtime.run.request import Request
from ctrain_runtime.run.submit import Run
from ctrain_runtime.site.select import SelectedSite, load_site


def request(run: Run, path: Path, site: SelectedSite, settings: Mapping[str, str]) -> Request:
    """The request of a run whose directory is `path`, with other values of its parameters if some are given. Raises
    UsageError, or DataError without its code."""
    plan = run.plan
    code = plan.mounts.code
    if code:
        copy = path / run_files.CODE
        if not copy.is_dir():
            raise DataError(f"run {plan.run} has no copy of its code: {copy} not found", "Run the job anew")
        code = replace(code, source=str(copy))
    same_site = site.site.name == plan.site
    options = Options(
        partition=plan.placement.partition if same_site and not plan.placement.allocation else "",
        settings=plan.placement.settings if same_site else {},
        scheduler_options=plan.placement.options if same_site else (),
        data=plan.mounts.data,
        env=_env(plan),
        mounts=_own_mounts(plan),
        image=_image(plan),
        layers=tuple(layer.path for layer in plan.image.layers),
        resume=str(Path(plan.mounts.resume).parent) if plan.mounts.resume else "",
    )
    return Request(site, options, given=_job(plan, settings, same_site), code=code)


def _job(plan: LaunchPlan, settings: Mapping[str, str], same_site: bool) -> Job:
    program, size = plan.program, plan.size
    is_alone = program.independent and plan.tasks == 1  # more ranks would form a world
    mounted = {mount.target for mount in plan.mounts.paths}
    target = next((mount.target for mount in plan.mounts.paths if mount.source == plan.mounts.data), "/data")
    limit = Resources.time if size.time_limit is None else format_limit(size.time_limit)
    return Job(
        plan.job,
        _with_settings(program.command, program.parameters, settings),
        (),
        "auto" if is_alone else "mpi" if program.launcher == "mpirun" else program.launcher,
        Resources(size.nodes, size.gpus_per_node, size.ranks_per_node, limit),
        Dataset("", target) if plan.mounts.data else None,
        {},
        program.workdir,
        Path(program.workdir) if program.workdir in mounted else None,
        independent=program.independent and not is_alone,
        restarts=program.restarts,
        parameters={**program.parameters, **settings},
        hang_after=f"{program.hang_after}s" if program.hang_after else "",
        on_hang=program.on_hang,
        retries=("until done" if program.until_done else program.retries) if same_site else 0,
    )


def _with_settings(
    command: tuple[str, ...], parameters: Mapping[str, str], settings: Mapping[str, str]
) -> tuple[str, ...]:
    """The command with other values of parameters, which are words of it in one of two styles. Raises UsageError."""
    words = list(command)
    for name, value in settings.items():
        if name not in parameters:
            hint = f"{suggest(name, parameters)} Its parameters: {', '.join(parameters) or 'none'}".strip()
            raise UsageError(f"the run has no parameter {name!r}", hint)
        old = parameters[name]
        for at in range(len(words) - 1, -1, -1):
            if words[at] == f"{name}={old}":
                words[at] = f"{name}={value}"
                break
            if words[at : at + 2] == [f"--{name}", old]:
                words[at + 1] = value
                break
        else:
            raise UsageError(f"parameter {name} is not in the command of the run", "Leave it out")
    return tuple(words)


def _image(plan: LaunchPlan) -> str:
    """The image by its digest, in whichever store this site has; one that is in none, by its path."""
    image = plan.image
    return f"{image.name}@{image.digest}" if image.version and not Path(image.path).exists() else image.path


def _env(plan: LaunchPlan) -> dict[str, Optional[str]]:
    """The variables of job and command line. Values that are written nowhere come from this shell."""
    environment = plan.environment
    own = {
        name: value
        for name, value in environment.variables.items()
        if environment.origins.get(name, "").startswith(("job ", "option"))
    }
    unmasked = {name: None if value == MASK else value for name, value in own.items()}
    return {**dict.fromkeys(environment.passed), **unmasked}


def _own_mounts(plan: LaunchPlan) -> tuple[str, ...]:
    """The mounts of the command line: all that neither the plan nor the site as it is now makes by itself."""
    try:
        site = load_site(plan.site)[0]
        of_site = {(mount.source, mount.target) for mount in site_mounts(site)}
    except CtrainError:  # a site that is not known here: all may be the user's
        of_site = set()
    code = plan.mounts.code
    caches = [value.rpartition("/")[0] for name, value in plan.environment.variables.items() if name == "HF_HOME"]
    made = {plan.run_directory, plan.program.workdir, *caches}
    made |= {f"{code.directory}/{name}" for name in code.live} if code else set()
    return tuple(
        f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}"
        for mount in plan.mounts.paths
        if mount.target not in made
        and (mount.source, mount.target) not in of_site
        and mount.source not in (plan.mounts.data, plan.mounts.resume)
    )

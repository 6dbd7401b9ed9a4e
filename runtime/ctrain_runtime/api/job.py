"""A job as programs describe it: the options of `ctrain run` as a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.plan.model import options_of
from ctrain_runtime.run.parameters import parse_setting
from ctrain_runtime.run.request import Request
from ctrain_runtime.site.select import select_site

if TYPE_CHECKING:  # start-up is measured
    from ctrain_runtime.images.pull import Report


@dataclass(frozen=True)
class Job:
    """What is to run, and where. None and "" mean what they mean on the command line when an option is left out: the
    job's value, then the site's.

    `job` is a packaged job or the path of a directory with a job.yaml, `command` what follows `--`: without a job the
    command, else further arguments. `settings` are options that every scheduler has (account, qos, mem, exclude ...).
    """

    job: str = ""
    command: Sequence[str] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    parameter_style: str = ""  # "--key value" or "key=value"
    image: str = ""
    pull: bool = False  # again, even if it is cached
    layers: Sequence[str] = ()
    nodes: Optional[int] = None
    gpus_per_node: Optional[int] = None
    ranks_per_node: Optional[int] = None
    launcher: str = ""
    independent: bool = False
    partition: str = ""
    time: str = ""
    data: str = ""
    env: Mapping[str, Optional[str]] = field(default_factory=dict)  # None: this process's value, written nowhere
    mounts: Sequence[str] = ()  # SRC[:DST[:ro]]
    preflight: str = ""  # off, warn or strict
    estimate: bool = False  # refuse what cannot fit
    stage: str = ""  # auto, always or never
    stage_data: bool = False
    resume: str = ""  # a run
    after: str = ""  # a run
    restarts: Optional[int] = None
    on_hang: str = ""  # report, restart or stop
    hang_after: str = ""  # as in 90s, 10m
    spare_nodes: int = 0
    retries: Optional[int] = None
    until_done: bool = False
    profile: str = ""  # torch, pyinstrument or nsys
    profile_ranks: str = ""
    profile_steps: str = ""
    cpu_bind: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    scheduler_options: Sequence[str] = ()
    notify: str = ""  # a command that is told of start and end
    live: bool = False  # in the job's directory itself, not in a copy
    name: str = ""  # of the run
    site: str = ""
    store: str = ""
    runs: str = ""  # the parent directory of runs

    def with_parameters(self, **parameters: object) -> Job:
        """The same job with other values of these parameters, as for each trial of a search."""
        return replace(self, parameters={**self.parameters, **parameters})


def make_request(job: Job, *, dry_run: bool = False, report: Report = lambda _what, _progress: None) -> Request:
    """The request of a job, with absolute paths: of programs and of the command line. Raises CtrainError."""
    data = str(expand_home(str(job.data)).resolve()) if job.data else ""
    env = tuple(name if value is None else f"{name}={value}" for name, value in job.env.items())
    lists = {"mounts": tuple(map(_absolute, job.mounts)), "scheduler_options": tuple(job.scheduler_options)}
    given = {**vars(job), "data": data, "env": env, **lists, "settings": tuple(job.settings.items())}
    return Request(
        site=select_site(job.site, {**vars(job), "comment": job.settings.get("comment")}),
        reference=str(job.job),
        command=tuple(job.command),
        parameters=dict(parse_setting(f"{name}={value}", "parameter") for name, value in job.parameters.items()),
        parameter_style=job.parameter_style,
        image=str(job.image),
        layers=tuple(map(Path, job.layers)),
        name=job.name,
        resume=job.resume,
        after=job.after,
        dry_run=dry_run,
        live=job.live,
        pull=job.pull,
        options=options_of(given),
        report=report,
    )


def _absolute(mount: str) -> str:
    source, colon, rest = mount.partition(":")
    return f"{expand_home(source).resolve()}{colon}{rest}" if source else mount

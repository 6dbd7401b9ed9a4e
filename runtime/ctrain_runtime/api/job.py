"""A job as programs describe it: the options of `ctrain run` as a frozen dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.plan.model import Options
from ctrain_runtime.run.parameters import parse_setting
from ctrain_runtime.run.prepare import Request
from ctrain_runtime.site.select import select_site


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
    layers: Sequence[str] = ()
    nodes: Optional[int] = None
    gpus_per_node: Optional[int] = None
    ranks_per_node: Optional[int] = None
    launcher: str = ""
    independent: bool = False
    partition: str = ""
    time: str = ""
    data: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[str] = ()  # SRC[:DST[:ro]], absolute
    preflight: str = ""  # off, warn or strict
    resume: str = ""  # a run
    after: str = ""  # a run
    restarts: Optional[int] = None
    settings: Mapping[str, str] = field(default_factory=dict)
    scheduler_options: Sequence[str] = ()
    live: bool = False  # in the job's directory itself, not in a copy
    name: str = ""  # of the run
    site: str = ""
    store: str = ""
    runs: str = ""  # the parent directory of runs

    def with_parameters(self, **parameters: object) -> Job:
        """The same job with other values of these parameters, as for each trial of a search."""
        return replace(self, parameters={**self.parameters, **parameters})


def make_request(job: Job, *, dry_run: bool = False) -> Request:
    """The request of a job. Raises CtrainError."""
    given = {"store": job.store, "runs": job.runs, "partition": job.partition, "comment": job.settings.get("comment")}
    return Request(
        site=select_site(job.site, given),
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
        options=Options(
            nodes=job.nodes,
            gpus_per_node=job.gpus_per_node,
            ranks_per_node=job.ranks_per_node,
            launcher=job.launcher,
            independent=job.independent,
            partition=job.partition,
            time=job.time,
            settings=tuple(job.settings.items()),
            scheduler_options=tuple(job.scheduler_options),
            data=str(expand_home(str(job.data)).resolve()) if job.data else "",
            env=tuple(f"{name}={value}" for name, value in job.env.items()),
            mounts=tuple(job.mounts),
            preflight=job.preflight,
            restarts=job.restarts,
        ),
    )

"""What a verb asks for, and what becomes of it before it is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from ctrain_runtime.job import Job
from ctrain_runtime.plan.model import Launch, Options
from ctrain_runtime.site.select import SelectedSite

if TYPE_CHECKING:  # start-up is measured
    from ctrain_runtime.images.pull import Report


@dataclass(frozen=True)
class Request:
    """The request of a verb that starts runs. `reference` names the job ("": the job is `command`, under `job_name` or
    its program's name); the other values are those of the command line, None and "" if not given. `dry_run`: it may be
    planned where it cannot run; `report` shows what takes a while."""

    site: SelectedSite
    reference: str = ""
    command: tuple[str, ...] = ()
    job_name: str = ""
    image: str = ""
    layers: tuple[Path, ...] = ()
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    parameter_style: str = ""
    resume: str = ""
    after: str = ""  # a run
    after_any: bool = False  # however that ends
    dry_run: bool = False
    pull: bool = False  # the image, even if it is cached
    live: bool = False  # the job's directory itself, not a copy
    options: Options = field(default_factory=Options)
    given: Optional[Job] = None  # of a recorded run: its command is whole, `options.code` its code
    report: Report = lambda _what, _progress: None


@dataclass(frozen=True)
class Prepared:
    """A launch that is not submitted. `notes` are lines for the user; `image_source` is the origin of the image's name
    if that is not the command line."""

    launch: Launch
    notes: tuple[str, ...]
    image_source: str = ""

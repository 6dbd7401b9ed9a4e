"""What a verb asks for, and what becomes of it before it is submitted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Optional

from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.job import Job
from ctrain_runtime.plan.model import CodeCopy, Launch
from ctrain_runtime.plan.options import Options
from ctrain_runtime.site.select import SelectedSite, select_site

if TYPE_CHECKING:  # start-up is measured
    from ctrain_runtime.images.pull import Report


@dataclass(frozen=True)
class Request:
    """The request of a verb that starts runs. The `options`, with absolute paths, name its job, or are a command under
    `job_name` ("": its program's name). `dry_run`: it may be planned where it cannot run; `report` shows what takes a
    while."""

    site: SelectedSite
    options: Options
    job_name: str = ""
    interactive: bool = False  # it has the user's terminal
    after_any: bool = False  # the run of --after may end in any way
    dry_run: bool = False
    given: Optional[Job] = None  # of a recorded run: its command is whole, `code` its code
    code: Optional[CodeCopy] = None
    report: Report = lambda _what, _progress: None


@dataclass(frozen=True)
class Prepared:
    """A launch that is not submitted. `notes` are lines for the user; `image_source` is the origin of the image's name
    if that is not the command line."""

    launch: Launch
    notes: tuple[str, ...]
    image_source: str = ""


def make_request(options: Options, *, dry_run: bool = False, report: Report = Request.report) -> Request:
    """The request of options, as programs and the command line give them. Raises CtrainError."""
    absolute = replace(
        options,
        job=str(options.job),
        command=tuple(options.command),
        image=str(options.image),
        data=str(expand_home(str(options.data)).resolve()) if options.data else "",
        mounts=tuple(map(_absolute, options.mounts)),
    )
    site = select_site(options.site, {**vars(options), "comment": options.settings.get("comment")})
    return Request(site, absolute, dry_run=dry_run, report=report)


def _absolute(mount: str) -> str:
    source, colon, rest = mount.partition(":")
    return f"{expand_home(source).resolve()}{colon}{rest}" if source else mount

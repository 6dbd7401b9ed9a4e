"""`ctrain import script`: makes a job of a batch script that starts a container, and prints the line that runs it.

Lines of the script that are not in the job are comments in job.yaml. Nothing is overwritten.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Optional

from ctrain_runtime import job
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.batch_script.job import make_job
from ctrain_runtime.batch_script.job_yaml import describe, job_text, run_line, shorten
from ctrain_runtime.batch_script.model import BatchJob, Remark
from ctrain_runtime.batch_script.script import BatchScript, read_script
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.errors import JobError, UsageError

LARGEST_SCRIPT = 1 << 17  # bytes
LISTED = 4  # lines that the screen names; all are in job.yaml


def import_script(script: Path, output: Optional[Path]) -> int:
    """Write the job of a script, read as if it were submitted in this directory: to `output`, by default in the
    directory where the script starts its program. Raises JobError, UsageError."""
    here = str(Path.cwd())
    made = make_job(_read(script, here))
    path = output or Path(_start(made, here), job.JOB_FILE)
    if path.name != job.JOB_FILE:
        raise UsageError(
            f"--output {path}: a job is a directory with a {job.JOB_FILE}", f"As in: -o {path.parent}/job.yaml"
        )
    made = _with_directory(made, str(path.parent.resolve()))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(job_text(made, script.name))
    except FileExistsError as error:
        raise JobError(f"{path} exists", "Remove it, or write another: -o DIR/job.yaml") from error
    except OSError as error:
        raise JobError(f"cannot write {path}: {error.strerror}", "Write another: -o DIR/job.yaml") from error
    _report(made, path)
    return 0


def _start(made: BatchJob, here: str) -> str:
    """The directory where the program starts; this one, if that is unknown or does not exist here."""
    return made.directory if made.directory and Path(made.directory).is_dir() else here


def _with_directory(made: BatchJob, directory: str) -> BatchJob:
    """The job, with a remark if its program starts elsewhere now."""
    if made.directory in (None, directory):
        return made
    remark = Remark(made.line, f"in {made.directory}", f"the program starts in {directory}, where job.yaml is")
    return replace(made, remarks=(*made.remarks, remark))


def _report(made: BatchJob, path: Path) -> None:
    size = f"{pluralize(made.nodes, 'node')} x {made.gpus_per_node} GPUs, {made.ranks_per_node} ranks per node"
    command = shorten(shlex.join(made.command))
    print_line(f"{path} written: {size}, {made.time}, image {made.image}, {command}")
    lost = [remark for remark in made.remarks if remark.lost]
    if lost:
        more = f" and {len(lost) - LISTED} more" if len(lost) > LISTED else ""
        print_line(f"{len(lost)} not carried over, comments in it: {describe(lost[:LISTED])}{more}")
    directory = "." if path.parent.resolve() == Path.cwd() else str(path.parent.resolve())
    try:
        job.find(directory)
    except JobError as error:
        print_line(f"look at it first: {error}")
    print_line(f"the same now: {run_line(made, directory)}")


def _read(path: Path, directory: str) -> BatchScript:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_SCRIPT + 1)
    except OSError as error:
        raise JobError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > LARGEST_SCRIPT or b"\0" in content:
        raise JobError(f"{path} is not a batch script")
    try:
        return read_script(content.decode("utf-8", "replace"), directory, os.environ)
    except JobError as error:
        raise JobError(f"{path}: {error.message}", error.hint) from error

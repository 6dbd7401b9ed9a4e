"""The user's command that is told of the end of a run, for runs whose job.sh was killed or never started: job.sh itself
tells it of the start and of the end."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from ctrain_runtime.base import command, run_files
from ctrain_runtime.errors import CtrainError, UsageError
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.run.record import Record

TIMEOUT_SECONDS = 20.0


def notifier(text: str) -> tuple[str, ...]:
    """The words of the key `notify`, with the path of the program. Raises UsageError if it cannot be started here."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"notify: {text!r} cannot be split into words: {error}", "Close its quotes") from error
    program = command.which(os.path.expanduser(words[0])) if words else None  # noqa: PTH111  # also of other users
    if words and not program:
        raise UsageError(f"notify: program {words[0]} not found", "Name an executable file, or a program on PATH")
    return (os.path.abspath(program), *words[1:]) if program else ()  # noqa: PTH100  # links keep their names


def tell_of_end(plan: LaunchPlan, record: Record) -> None:
    """Start the notifier of a run that has ended, unless it was told already. Its failure changes nothing."""
    if not plan.notify or not record.exit:
        return
    try:
        os.close(os.open(Path(plan.run_directory) / run_files.NOTIFIED, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:  # it was told, or the directory is gone
        return
    message = f"run {plan.run} ended: {record.exit.reason}"
    outcome = {"CTRAIN_EVENT": "failed" if record.exit.code else "ended", "CTRAIN_MESSAGE": message}
    variables = {**os.environ, **outcome, "CTRAIN_RUN": plan.run, "CTRAIN_RUN_DIR": plan.run_directory}
    with contextlib.suppress(CtrainError):
        command.run(plan.notify, env=variables, stdin=f"{message}\n", timeout=TIMEOUT_SECONDS, check=False)

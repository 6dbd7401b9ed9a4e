"""What goes along with the measures of a run: few facts, since others may read the place to which they go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Optional

from ctrain_runtime.base.text import one_line
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.run.record import Record


def tags(record: Record) -> dict[str, str]:
    """Facts of a run by name. Neither the command nor values of the environment: they may hold secrets."""
    return {
        "run": record.run,
        "job": record.job,
        "image": f"{record.image.get('name', '')} {record.image.get('version', '')}".strip(),
        "image_digest": record.image.get("digest", ""),
        "site": record.site,
        "launcher": record.launcher,
        "ranks": str(record.world_size),
        "commit": record.revision + (" with changes" if record.uncommitted else ""),
        "outcome": record.exit.ending.value if record.exit else "not ended",
        "exit_code": str(record.exit.code) if record.exit else "",
    }


def identity(record: Record) -> str:
    """The same for each export of a run, and for no other run of its user: its name and when it was made."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", f"{record.run}-{int(seconds(record.created) or 0)}")


def start(record: Record) -> float:
    """When it began, in seconds since the epoch: for measures that have no time."""
    return seconds(record.start) or seconds(record.created) or 0.0


def seconds(moment: Optional[str]) -> Optional[float]:
    return datetime.fromisoformat(moment).timestamp() if moment else None


def ended(record: Record, where: str) -> int:
    """The exit code of a run that has ended. Raises CtrainError for one that has not."""
    if record.exit is None:
        problem = f"run {record.run} has not ended, and {where} takes a run once"
        raise CtrainError(problem, f"Use: ctrain wait {record.run}, or --to tensorboard DIR")
    return record.exit.code


@contextmanager
def errors_of(library: str) -> Iterator[None]:
    """Whatever a library raises, since each has errors of its own and of others, in one line."""
    try:
        yield
    except (CtrainError, ModuleNotFoundError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CtrainError(
            f"{library}: {one_line(lines[0]).rstrip('.')}", "Check the address and your login, then retry"
        ) from error

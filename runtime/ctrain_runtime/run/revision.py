"""The git commit of the code of a run, and what differs from it."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError

GIT_SECONDS = 5.0
MAX_DIFF_BYTES = 1_000_000


def commit(workdir: str) -> str:
    """The commit that is checked out in a directory; "" outside of repositories, and for examples in the image."""
    return _git(workdir, "rev-parse", "HEAD").strip() if Path(workdir).is_dir() else ""


def uncommitted(workdir: str) -> str:
    """The difference of a directory's tracked files to the commit; "" without one, or if it is too large to be kept."""
    text = _git(workdir, "diff", "HEAD", "--no-ext-diff", "--relative", "--", ".")
    return text if len(text) <= MAX_DIFF_BYTES else ""


def _git(workdir: str, *arguments: str) -> str:
    try:
        result = command.run(["git", "-C", workdir, *arguments], check=False, timeout=GIT_SECONDS)
    except CtrainError:
        return ""
    return result.stdout if result.code == 0 else ""

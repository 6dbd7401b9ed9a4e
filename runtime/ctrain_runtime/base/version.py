"""The version of ctrain, and the commit that it was made from."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError

PACKAGE = Path(__file__).parents[1]
GIT_SECONDS = 5.0


def ctrain_version(package: Path = PACKAGE) -> str:
    """As installed; "" where it is run from a checkout that is not."""
    installed = list(package.parent.glob("ctrain-*.dist-info"))
    if len(installed) == 1:  # its name has the version (PEP 427): importlib.metadata imports 40 modules
        return installed[0].stem.partition("-")[2]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ctrain")
    except PackageNotFoundError:
        return ""


def commit(package: Path = PACKAGE) -> str:
    """As the wheel has it (setup.py), else that of the checkout; "" if nobody knows."""
    built_from = package / "share/commit"
    if built_from.is_file():
        return built_from.read_text(encoding="utf-8").strip()
    top = package.parents[1]
    if not (top / ".git").exists():  # not that of a repository around, such as a home's
        return ""
    ask = ["git", "-C", str(top), "rev-parse", "--short=12", "HEAD"]
    try:
        result = command.run(ask, check=False, timeout=GIT_SECONDS)
    except CtrainError:
        return ""  # no git
    return result.stdout.strip() if result.code == 0 else ""

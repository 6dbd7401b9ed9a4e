"""A version's own Python environment, by venv and pip, with this machine's own settings of pip."""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path

from ctrain_builder.install.prefix import no_space
from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError

_SECONDS = 1800  # for a slow index and a slow file system
_NEEDED_BYTES = 64_000_000  # venv does not say why it failed
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
# -I: no PYTHONPATH and no ~/.local, which other users do not have
_PIP = ("-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-warn-script-location")


def make(directory: Path, python: str, requirement: str) -> None:
    """Make the environment `directory` for this Python, and let pip install `requirement` there. Raises CtrainError."""
    # Before Python 3.11, venv links to the Python of another environment, which may be closed to others, or removed.
    python = str(Path(command.which(python) or python).resolve())
    if command.run([python, "-I", "-c", "import ensurepip"], check=False).code:
        hint = "Run as root: apt install python3-venv; or choose another one: --python PROGRAM"
        raise CtrainError(f"{python} cannot make Python environments: it has no ensurepip", hint)
    own = directory / "bin/python"
    _run(
        directory, [python, "-I", "-m", "venv", str(directory)], f"{python} -m venv", "Choose another: --python PROGRAM"
    )
    _check_access(directory, own.resolve())
    hint = f"pip has this machine's settings: {python} -m pip config list"
    _run(directory, [str(own), *_PIP, requirement], f"pip install '{requirement}'", hint)


def _run(directory: Path, argv: list[str], what: str, hint: str) -> None:
    done = command.run(argv, timeout=_SECONDS, check=False)
    if done.code == 0:
        return
    if _FULL.search(done.stderr) or shutil.disk_usage(directory.parent).free < _NEEDED_BYTES:
        raise no_space(directory.parents[1])
    raise CtrainError(f"{what} failed: {done.last_error_line()}", hint)


def _check_access(directory: Path, python: Path) -> None:
    """The environment is no copy of its Python: who cannot start that cannot run ctrain."""
    closed = [path for path in python.parents if not path.stat().st_mode & stat.S_IXOTH]
    if closed and all(path.stat().st_mode & stat.S_IXOTH for path in directory.parents):
        what = f"other users cannot start {python}: {closed[0]} is closed to them"
        raise CtrainError(what, "Choose one for all users: --python /usr/bin/python3")

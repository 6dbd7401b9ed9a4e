"""Where things are on this machine: the user's home directory, what comes with ctrain, and where it is installed."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import CtrainError, UsageError

INSTALLATION = "ctrain-installation.json"  # in PREFIX/VERSION, once all of that version is there
INSTALLED_SITES, INSTALLED_STORE = "sites", "store"  # in PREFIX, for all of its versions


def expand_home(path: str) -> Path:
    """`path` with a leading ~ or ~USER replaced; unchanged if that user has no account here, as on a cluster's node."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for such a user


def data_dir(name: str) -> Path:
    """`definitions/`, `examples/` or `docs/`: in the wheel a copy (setup.py), in a checkout at its top level."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "share", package.parents[1]):
        if (root / name).is_dir():
            return root / name
    raise CtrainError(f"incomplete installation: directory {name}/ not found", "Reinstall ctrain")


def missing_package_hint(package: str) -> str:
    """The next step for who lacks a Python package that a command of ctrain needs."""
    prefix = installation_prefix()
    if prefix:
        return f"The ctrain in {prefix} is for all users: install your own, with [build]; see: ctrain help installing"
    if not find_spec("pip"):  # as in an environment of uv
        return "Install ctrain again, with [build]; see: ctrain help installing"
    return f"Run: {sys.executable} -m pip install {package}"


def installation_prefix() -> Optional[Path]:
    """The directory of all versions, site files and the store, if `ctrain install` has installed this ctrain."""
    version = Path(sys.prefix).parent  # of PREFIX/VERSION/venv
    return version.parent if (version / INSTALLATION).is_file() else None


def store_path(text: str) -> Path:
    """The directory of a store, as users name it. Raises UsageError for a URL, which is not a path."""
    if "://" in text:
        hint = "Copy versions from a registry to a store with: ctrain store sync"
        raise UsageError(f"a store must be a directory, not {text!r}", hint)
    return Path(text)

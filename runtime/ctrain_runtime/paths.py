"""Where things are on this machine: the user's home directory, and the data directories that come with ctrain."""

from __future__ import annotations

import os
from pathlib import Path

from ctrain_runtime.errors import CtrainError


def expand_home(path: str) -> Path:
    """`path` with a leading ~ or ~USER replaced; unchanged if that user has no account here, as on a cluster's node."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for such a user


def data_dir(name: str) -> Path:
    """`definitions/`, `examples/` or `docs/`: in the wheel a copy (setup.py), in a checkout at its top level."""
    package = Path(__file__).resolve().parent
    for root in (package / "share", package.parents[1]):
        if (root / name).is_dir():
            return root / name
    raise CtrainError(f"incomplete installation: directory {name}/ not found", "Reinstall ctrain")

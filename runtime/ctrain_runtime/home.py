"""The user's home directory, which a container or a cluster's node may not know."""

from __future__ import annotations

import os
from pathlib import Path


def expand_home(path: str) -> Path:
    """`path` with a leading ~ or ~USER replaced; unchanged if that user has no account here."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for such a user

"""Which stores a verb looks in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from ctrain_runtime import site
from ctrain_runtime.store import Store, open_store


def open_stores(named: Optional[str], where: site.Site) -> list[Store]:
    """The store of --store or CTRAIN_STORE, else those of the site. Raises StoreError, ConfigError."""
    return [open_store(Path(path)) for path in places(named, where)]


def places(named: Optional[str], where: site.Site) -> list[str]:
    """The folders of these stores. Raises ConfigError."""
    one = named or os.environ.get("CTRAIN_STORE")
    return [one] if one else [site.expand(path, f"site {where.name}: stores") for path in where.stores]

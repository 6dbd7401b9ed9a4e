"""The stores of a site."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.site import SelectedSite, expand
from ctrain_runtime.store import Store, open_store, store_path


def open_stores(selected: SelectedSite) -> list[Store]:
    """The stores of a site; --store and CTRAIN_STORE are among its layers. Raises StoreError, ConfigError."""
    return [open_store(Path(path)) for path in store_dirs(selected)]


def store_dirs(selected: SelectedSite) -> list[str]:
    """The directories of a site's stores. Raises ConfigError, UsageError."""
    where = f"{selected.sources['stores']}: stores"
    return [expand(str(store_path(text)), where) for text in selected.site.stores]

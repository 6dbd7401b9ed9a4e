"""Changes a store, and keeps module files and the catalogue up to date: what was made of a store once is made again
when its lock is free."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ctrain_builder.store.views import catalogue_page, modules
from ctrain_builder.store.writer import LockedStore, lock_store
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.store import outputs
from ctrain_runtime.store.store import Store

Say = Callable[[str], None]
_REFRESH: dict[str, Callable[[Store, Path, Say], object]] = {
    outputs.MODULES: modules.update,
    outputs.CATALOGUE: lambda store, _path, say: catalogue_page.write(catalogue_page.load_entries(store), None, say),
}


@contextlib.contextmanager
def change(store: Store, say: Say) -> Iterator[LockedStore]:
    """Hold the store's lock, as `lock_store`; what was made of the store follows, also where only a part of the changes
    could be made."""
    with contextlib.ExitStack() as after, lock_store(store.root, say) as writer:
        after.callback(refresh, store, say)
        yield writer


def refresh(store: Store, say: Say) -> None:
    """Make again what is out of date. The change itself has been made: a failure is said, and is none of the change."""
    root = store.root.absolute()
    try:
        stale = outputs.find_stale(root, store.scan())
    except CtrainError as error:
        say(f"ctrain: {error}")
        return
    for output in stale:
        try:
            if not _is_trusted(root / outputs.FILE):
                raise CtrainError("somebody else has recorded it")
            if output.kind not in _REFRESH:
                raise CtrainError("a newer ctrain has made it")
            named = Store(Path(output.store)) if output.names(root) else store
            _REFRESH[output.kind](named, output.path, say)
            say(f"updated {output.path}")
        except CtrainError as error:
            say(f"ctrain: {output.path} is out of date: {error}. Run: {output.command(root)}")


def _is_trusted(record: Path) -> bool:
    """Whether it may say where this user writes: others who can write to the store must not."""
    return record.stat().st_uid in (0, os.geteuid())

"""Creates stores, and gives a store whose marker file was lost a new one."""

from __future__ import annotations

import json
from pathlib import Path

from ctrain_builder.files import atomic
from ctrain_builder.store.writer import LOCK, Permissions, translate_os_errors
from ctrain_runtime.errors import StoreError
from ctrain_runtime.store.store import LAYOUT_VERSION, STORE_MARKER, MarkerNotFound, has_store_files, open_store


def init_store(root: Path, repair: bool = False) -> bool:
    """Make a missing or empty directory a store; False if it is one already.

    `repair` allows a directory with the files of a store, whose marker file is then written again. Raises StoreError
    for a missing parent directory, for a directory with other contents, and for a store of another layout.
    """
    with translate_os_errors(root):
        try:
            open_store(root)
            return False
        except MarkerNotFound as error:
            others = _others(root) if root.exists() else []
            if others and not has_store_files(root):
                problem = f"{root} is not empty and not a store (it has {others[0]})"
                raise StoreError(problem, "Choose an empty or new directory") from error
            if others and not repair:
                raise
        if not root.exists():
            _create(root)
        access = Permissions(root.stat())
        atomic.write_text(root / STORE_MARKER, json.dumps({"layout": LAYOUT_VERSION}) + "\n", access.file, access.group)
    return True


def _create(root: Path) -> None:
    """Create the directory, but no others above it: they would be those of a mistyped path."""
    parent = root.absolute().parent
    if not parent.is_dir():
        raise StoreError(f"cannot create store {root}: directory {parent} does not exist", f"Run: mkdir -p {parent}")
    root.mkdir()
    root.chmod(0o755)


def _others(root: Path) -> list[str]:
    """What a directory has besides the traces of somebody who initialises it at the same moment."""
    return [path.name for path in root.iterdir() if not path.name.startswith((f".{STORE_MARKER}", STORE_MARKER, LOCK))]

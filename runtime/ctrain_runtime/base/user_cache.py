"""A user's cache of facts that are slow to determine: $XDG_CACHE_HOME/ctrain/NAME.json.

For each key it has the fact and the conditions under which it holds; if they have changed, the entry is ignored. If
the cache cannot be read or written, facts are determined again.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

from ctrain_runtime.base.paths import expand_home


def cache_dir() -> Path:
    """The directory of this user's caches; relative if there is no home directory."""
    return expand_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ctrain"


def file_conditions(path: Path) -> list[object]:
    """The conditions of facts about a file: its host, inode, size and times. Raises OSError."""
    status = path.stat()
    identity = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return [socket.gethostname(), *identity]


class UserCache:
    """Facts by key; `conditions` are plain JSON values, which must be equal for an entry to be valid."""

    def __init__(self, name: str) -> None:
        self._path = cache_dir() / f"{name}.json"
        self._entries: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            self._entries = dict(json.loads(self._path.read_text(encoding="utf-8")))

    def get(self, key: str, conditions: list[object]) -> object:
        """The value that was put under `key`, or None."""
        entry = self._entries.get(key)
        return entry[1] if isinstance(entry, list) and len(entry) == 2 and entry[0] == conditions else None

    def has(self, key: str) -> bool:
        """Whether something was put under `key`, whatever its conditions were."""
        return key in self._entries

    def put(self, key: str, conditions: list[object], value: object) -> None:
        """Store `value`, a plain JSON value other than None."""
        self._entries[key] = [conditions, value]
        if not self._path.is_absolute():  # no home directory
            return
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}.{threading.get_ident()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                new.write_text(json.dumps(self._entries), encoding="utf-8")
                new.replace(self._path)
            finally:
                new.unlink(missing_ok=True)

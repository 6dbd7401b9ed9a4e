"""Files of a cache: put in their place whole, and read as records that only save work."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, TypeVar

from ctrain_builder.cache.cache_locks import CacheLocks
from ctrain_builder.cache.work_directories import WorkDirectories
from ctrain_builder.files import atomic
from ctrain_runtime.base import config
from ctrain_runtime.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class CacheFiles:
    root: Path

    def write(self, path: Path, data: Any) -> None:
        """Write a JSON file of the cache, whole or not at all."""
        with WorkDirectories(self.root).create() as work:
            new = work / path.name
            new.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
            self.place(new, path)

    def place(self, finished: Path, target: Path) -> None:
        """Put a finished file in its place, durably; in a shared cache, the group may use and replace it."""
        if CacheLocks(self.root).is_shared:
            os.chown(finished, -1, self.root.stat().st_gid)
            finished.chmod(finished.stat().st_mode | 0o060)
        atomic.move(finished, target)

    def new_log(self, name: str) -> Path:
        """An empty log that only its owner reads."""
        path = self.root / "logs" / f"{name}.log"
        path.unlink(missing_ok=True)
        path.touch(0o600)
        return path


def read(path: Path) -> Optional[dict[str, Any]]:
    """The object in a JSON file of the cache; None if it is missing or damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def load_record(kind: type[T], path: Path) -> Optional[T]:
    """The record in a JSON file of the cache; None as in `read`, and where it is not of that kind."""
    with contextlib.suppress(ConfigError):
        data = read(path)
        return None if data is None else config.load(kind, data, str(path))
    return None

"""Files and directories that tests make once and keep for later sessions, beside the image of tests/python39/run."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def kept(name: str, made_from: str, make: Callable[[Path], None]) -> Path:
    """The file or directory that `make` writes to a path in a new folder, made once from `made_from`, whoever else
    wants it meanwhile. Its predecessors go."""
    cache = Path(os.environ.get("CTRAIN_TEST_CACHE") or "/var/cache/ctrain-tests")
    cache.mkdir(parents=True, exist_ok=True)
    file = cache / f"{hashlib.sha256(made_from.encode()).hexdigest()[:12]}-{name}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            work = Path(tempfile.mkdtemp(dir=cache))
            try:
                make(work / name)
                for old in cache.glob(f"*-{name}"):
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
                (work / name).rename(file)
            finally:
                shutil.rmtree(work)
    return file

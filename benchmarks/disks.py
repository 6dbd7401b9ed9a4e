"""File systems that copy by reference, for benchmarks that want one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def reflink_disk(folder: Path, size: int) -> Iterator[Path | None]:
    """An XFS with reflinks in a sparse file of `folder`; None, with a word on it, where one can't be mounted."""
    if os.geteuid() != 0 or not shutil.which("mkfs.xfs"):
        print("# no figures with reflinks: that takes root and mkfs.xfs (xfsprogs)", file=sys.stderr, flush=True)
        yield None
        return
    file, place = folder / "disk", folder / "mounted"
    place.mkdir()
    with file.open("wb") as disk:
        disk.truncate(size)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(file)], check=True)
    subprocess.run(["mount", "-o", "loop", str(file), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)

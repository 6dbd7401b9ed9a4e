"""Locks of open files that hold between an NFS server and its clients, too.

To the server its clients' `flock` is a lock on the file's bytes, which its own `flock` lets pass. So on a local file
system, of which this machine may be that server, both are taken, in this order. On NFS itself one call is both.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import IO, Union

from ctrain_runtime.base.file_systems import mount_of


def lock_open_file(file: Union[int, IO[bytes]], path: Path, kind: int) -> None:
    """Lock `file`, which is `path`, until it is closed; `kind` is that of `flock`. Raises BlockingIOError, if it has
    LOCK_NB, where another has it."""
    fcntl.flock(file, kind)
    if not mount_of(path.parent).is_local:
        return
    of_bytes = fcntl.F_WRLCK if kind & fcntl.LOCK_EX else fcntl.F_RDLCK
    whole_file = struct.pack(
        "hhqqi0q", of_bytes, os.SEEK_SET, 0, 0, 0
    )  # struct flock: type, whence, start, length, pid
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK if kind & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW, whole_file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a kernel without them, before Linux 3.15
            raise

"""Python's compiled files (.pyc) in a layer: valid with the times that their sources get there, and quick to load.

A .pyc tells the time of its source, and is recompiled at each start when that isn't the time which the source has. The
times in a layer are cut off at SOURCE_DATE_EPOCH. Under that variable Python itself writes a checksum of the source
instead, which it then computes at every import: `import torch` took a third longer. So all get the time of the source.
"""

from __future__ import annotations

import importlib.util
import stat
import struct
from collections.abc import Iterable
from pathlib import PurePosixPath

from ctrain_builder.files.tree import Tree
from ctrain_builder.layers.overlay import writable

_HEADER = struct.Struct("<H2sIII")  # magic number, \r\n, flags; then the source's time and size, or its checksum
_MAGIC = range(3390, 10000)  # since Python 3.7
_BY_TIME, _BY_CHECKSUM = 0, 3
_MASK = 0xFFFFFFFF


def set_source_times(tree: Tree, names: Iterable[PurePosixPath], time: int) -> None:
    """Make the .pyc files among `names` those of sources whose times are cut off at `time`."""
    for name in names:
        if name.suffix == ".pyc":
            _set_source_time(tree, name, time)


def _set_source_time(tree: Tree, name: PurePosixPath, time: int) -> None:
    try:
        source = tree.status(importlib.util.source_from_cache(str(name)))
    except ValueError:  # not in a __pycache__
        return
    compiled = tree.status(name)
    if not (source and stat.S_ISREG(source.st_mode) and compiled and stat.S_ISREG(compiled.st_mode)):
        return
    with tree.open(name) as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return
    magic, line_end, flags, recorded, size = _HEADER.unpack(head)
    if magic not in _MAGIC or line_end != b"\r\n":
        return
    now = int(source.st_mtime) & _MASK, source.st_size & _MASK
    # A checksum can't be verified here, as each version of Python computes its own. It is that of the source as it was
    # when the .pyc was written; any change of the source since then shows in its ctime.
    valid = (recorded, size) == now if flags == _BY_TIME else source.st_ctime <= compiled.st_mtime
    if flags in (_BY_TIME, _BY_CHECKSUM) and valid:
        new = _HEADER.pack(magic, line_end, _BY_TIME, min(now[0], time), now[1])
        if new != head:
            with tree.at(name) as path, writable(path), tree.open(name, "r+b") as file:
                file.write(new)

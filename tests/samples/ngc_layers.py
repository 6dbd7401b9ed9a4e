"""The layers of a small image with what those of NVIDIA's hold: owners with large IDs, whiteouts, an opaque directory,
hard links across layers, a directory that nobody may enter.

The IDs were read in a report (nvidia-holoscan/holoscan-sdk#49); no image was pulled.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from samples import tiny

OWNER = 1776653678


@dataclass(frozen=True)
class File:
    text: str = ""
    mode: int = 0o644
    owner: int = 0


@dataclass(frozen=True)
class Directory:
    mode: int = 0o755
    owner: int = 0


@dataclass(frozen=True)
class HardLink:
    to: str


Entries = Mapping[str, Union[File, Directory, HardLink]]
LOWEST: Entries = {
    "srv": Directory(),
    "srv/removed": File("of the lowest layer\n"),
    "srv/changed": File("old\n"),
    "srv/first": File("linked\n", owner=OWNER),
    "srv/theirs": File("of a large ID\n", 0o640, OWNER),
    "srv/opaque": Directory(0o755, OWNER),
    "srv/opaque/below": File(),
    "srv/gone": Directory(),
    "srv/gone/below": File(),
    "srv/locked": Directory(0o000),
    "srv/locked/inside": File("behind a closed door\n"),
    "srv/setuid": File("#!/bin/sh\n", 0o4755),
}
MIDDLE: Entries = {
    "srv/.wh.removed": File(),
    "srv/opaque": Directory(0o755, OWNER),
    "srv/opaque/.wh..wh..opq": File(),
    "srv/opaque/above": File("new\n", owner=OWNER),
    "srv/second": HardLink("srv/first"),  # of a file in the layer below
    "srv/changed": File("new\n", 0o600),
}
TOP: Entries = {
    "srv/.wh.gone": File(),
    "srv/third": HardLink("srv/second"),
    "srv/locked/later": File("through the closed door\n"),
}


def tars(rootfs: Path, ballast: int = 0) -> list[bytes]:
    """The layers, the lowest first: on a tiny root file system, made in `rootfs`, with `ballast` random bytes."""
    tiny.rootfs(rootfs, tiny.SHELL)
    if ballast:
        (rootfs / "ballast").write_bytes(os.urandom(ballast))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(rootfs.iterdir()):
            tar.add(path, path.name)
        _add(tar, LOWEST)
    return [out.getvalue(), *(_tar(entries) for entries in (MIDDLE, TOP))]


def _tar(entries: Entries) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, entries)
    return out.getvalue()


def _add(tar: tarfile.TarFile, entries: Entries) -> None:
    for path, one in entries.items():
        entry = tarfile.TarInfo(path)
        if isinstance(one, HardLink):
            entry.type, entry.linkname = tarfile.LNKTYPE, one.to
            tar.addfile(entry)
            continue
        entry.mode, entry.uid, entry.gid = one.mode, one.owner, one.owner
        if isinstance(one, Directory):
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
        else:
            entry.size = len(one.text)
            tar.addfile(entry, io.BytesIO(one.text.encode()))

"""Packs the upper folder of an overlay as a squashfs file that every engine can mount over the layers below."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ctrain_builder.make.container import Below, Container, Failed
from ctrain_builder.make.overlay import Upper, scan, whiteouts
from ctrain_runtime import command
from ctrain_runtime.errors import BuildError

# gzip: every engine and kernel reads it. Owners are root's, whoever builds: an ordinary user can't keep others.
_OPTIONS = ("-noappend", "-no-progress", "-comp", "gzip", "-all-root", "-no-xattrs")
# Mounts of the host while the layer is made, and marks of deleted names that only one kind of overlay understands.
_NOT_PACKED = ("tmp/*", "var/tmp/*", "mnt/*", "dev/*", "proc/*", "sys/*", "etc/resolv.conf", "etc/hosts", "... .wh.*")


def pack(container: Container, upper: Path, below: Below, log: Path) -> Path:
    """Pack an upper folder. Returns the squashfs file, in the work folder. Raises BuildError."""
    found = scan(upper)
    _check_readable(upper, found)
    pseudo = container.work / "whiteouts"
    hidden = whiteouts(found, _listing(container, below, found.opaque))
    pseudo.write_text("".join(f"{_quoted(path)} c 0 0 0 0 0\n" for path in hidden), encoding="utf-8")
    packed = container.work / "layer.sqsh"
    argv = [_mksquashfs(), str(upper), str(packed), *_OPTIONS, "-pf", str(pseudo), "-wildcards", "-e", *_NOT_PACKED]
    try:
        container.run(argv, log)
    except Failed as error:
        raise BuildError(f"mksquashfs failed with exit code {error.code}", f"The log is {log}") from error
    return packed


def _check_readable(upper: Path, found: Upper) -> None:
    """mksquashfs would put an empty file in place of one that it can't read."""
    for path in (upper / name for name in found.others):
        if stat.S_ISREG(path.lstat().st_mode) and not os.access(path, os.R_OK):
            what = f"/{path.relative_to(upper)} of a layer is unreadable for its own user"
            raise BuildError(what, "Build as root, or give it a mode in %post")


def _listing(container: Container, below: Below, folders: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    """Everything that the layers below hold in the folders."""
    if not folders:
        return []
    argv = container.argv("exec", below.base, overlays=below.overlays, as_root=True)
    script = 'for folder; do if [ -d "$folder" ]; then find "$folder" -mindepth 1 -print0; fi; done'
    text = container.output([*argv, "/bin/sh", "-c", script, "sh", *(f"/{folder}" for folder in sorted(folders))])
    return [PurePosixPath(path[1:]) for path in text.split("\0") if path]


def _quoted(path: PurePosixPath) -> str:
    return re.sub(r'([\s"\\])', r"\\\1", str(path))


def _mksquashfs() -> str:
    path = command.find("mksquashfs")
    if not path:
        raise BuildError("mksquashfs is not on PATH", "Install squashfs-tools")
    return path

"""Packs directories as squashfs files. The same content gives the same bytes: whoever packs it, where and when."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ctrain_builder.build_host import secrets
from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import bytecode, host_tools, lowerdir, workspace
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.overlay import Upper, remove_marks, scan, whiteouts
from ctrain_builder.plan.build_plan import FALLBACK_EPOCH, GZIP

# Owners are root's, whoever builds: an ordinary user can't keep others. mksquashfs sorts names and cuts off times at
# SOURCE_DATE_EPOCH; so it does since version 4.4.
_OPTIONS = ("-noappend", "-no-progress", "-all-root")
# The levels: docs/layers.md has sizes and times.
_COMPRESSORS: dict[str, tuple[str, ...]] = {
    "gzip": ("-Xcompression-level", "4"),
    "zstd": ("-Xcompression-level", "3"),
    "lz4": (),
}
PACKED, _DELETED = "packed.sqsh", "deleted"
# Mounts of the host while a layer is made, and marks of deleted names that only one kind of overlay understands.
_NOT_PACKED = (
    "tmp/*",
    "var/tmp/*",
    "mnt/*",
    "dev/*",
    "proc/*",
    "sys/*",
    "etc/resolv.conf",
    "etc/hosts",
    "etc/hostname",
    "... .wh.*",
)


def options(compression: str) -> tuple[str, ...]:
    """The options of mksquashfs for whatever it packs."""
    return (*_OPTIONS, "-comp", compression, *_COMPRESSORS[compression])


def pack(
    container: Container,
    upper: Path,
    below: LowerLayers,
    log: Path,
    epoch: int = FALLBACK_EPOCH,
    compression: str = GZIP,
) -> Path:
    """Pack an upper directory as a layer. Returns the squashfs file, in the work directory. Raises BuildError."""
    changes = scan(Tree(upper))
    hidden = whiteouts(changes, lowerdir.list_descendants(container, below, changes.opaque, log))
    names = [_quoted(path) for path in hidden]
    # A line end can't be told in a file of such names, but in an argument.
    apart = [word for name in names if "\n" in name for word in ("-p", _deleted(name))]
    lines = "".join(f"{_deleted(name)}\n" for name in names if "\n" not in name)
    (host_tools.prepare(container) / _DELETED).write_bytes(os.fsencode(lines))
    return _run(container, layer_argv(container, upper, below, compression, apart), upper, changes, log, epoch)


def pack_base(container: Container, root: Path, log: Path, epoch: int, compression: str = GZIP) -> Path:
    """Pack the root directory of a base. Returns the squashfs file, in the work directory. Raises BuildError."""
    host_tools.prepare(container)
    return _run(container, base_argv(container, root, compression), root, scan(Tree(root)), log, epoch)


def packed(container: Container) -> Path:
    return container.work / PACKED


def move_out(container: Container) -> Path:
    """The squashfs file, out of the directory where mksquashfs has written it. Raises BuildError."""
    Tree(host_tools.directory(container)).move_out(PACKED, packed(container))
    return packed(container)


def layer_argv(
    container: Container, upper: Path, below: LowerLayers, compression: str = GZIP, apart: Sequence[str] = ()
) -> list[str]:
    """The command that packs a layer; the names that it hides are in a file of the work directory, or `apart`."""
    deleted = f"{_directory(container)}/{_DELETED}"
    argv = [*_argv(container, upper, below.base), *options(compression), *apart, "-pf", deleted]
    return [*argv, "-wildcards", "-e", *_NOT_PACKED]


def base_argv(container: Container, root: Path, compression: str = GZIP) -> list[str]:
    """The command that packs a base, all of it but mount points of the host."""
    return [*_argv(container, root, root), *options(compression), "-wildcards", "-e", "sys/*"]


def epoch_env(time: int) -> dict[str, str]:
    """The variables by which programs, in containers too, take `time` (seconds since 1970) for the present."""
    return {f"{prefix}SOURCE_DATE_EPOCH": str(time) for prefix in ("", "APPTAINERENV_", "SINGULARITYENV_")}


def mksquashfs() -> str:
    return host_tools.require_tool("mksquashfs", "squashfs-tools")


def _argv(container: Container, directory: Path, image: Path) -> list[str]:
    """Root packs from outside; an ordinary user as root of a container of `image`."""
    if container.root:
        start = [mksquashfs(), str(directory)]
    else:
        bind = f"{directory}:{host_tools.INSIDE}/{host_tools.ROOT}"
        start = [
            *host_tools.exec_argv(container, image, binds=[bind]),
            *host_tools.argv(mksquashfs()),
            f"{host_tools.INSIDE}/{host_tools.ROOT}",
        ]
    return [*start, f"{_directory(container)}/{PACKED}"]


def _directory(container: Container) -> str:
    """The directory of mksquashfs's files, where it sees it."""
    return str(host_tools.directory(container)) if container.root else host_tools.INSIDE


def _run(container: Container, argv: Sequence[str], directory: Path, changes: Upper, log: Path, epoch: int) -> Path:
    tree = Tree(directory)
    time = _clamp_mtimes(tree, changes, epoch, workspace.started(container.work))  # before: it looks at ctimes
    remove_marks(tree, changes)
    _refuse_secrets(container, tree)
    if not container.root:
        host_tools.copy_tool(container, mksquashfs())
    container.require(argv, log, "mksquashfs failed", epoch_env(time))
    return move_out(container)


def _refuse_secrets(container: Container, tree: Tree) -> None:
    """Of what the build has written; what is older has come from images below, which don't know them.

    By the time of the last change, which %post cannot set. It can that of the content (`touch -d @0`, `cp -p`), but so
    do archives, whose files may hold a short password by chance: there the long ones alone are looked for.
    """
    if container.secrets:
        started = workspace.started(container.work)
        new = [entry for entry in tree.walk() if entry.is_file and entry.status.st_ctime >= started]
        dated = {entry.name for entry in new if entry.status.st_mtime < started}
        secrets.refuse(tree, (entry.name for entry in new if entry.name not in dated), container.secrets)
        secrets.refuse(tree, dated, [secret for secret in container.secrets if len(secret) >= secrets.BY_NO_CHANCE])


def _clamp_mtimes(tree: Tree, changes: Upper, epoch: int, started: float) -> int:
    """The time at which those of the files are cut off: `epoch`, or a later one that a file has brought along.

    What the build itself has written is newer than `started`. The rest has come with its time from an archive or an
    image below, where for example compiled Python files hold the times of their sources. Directories get that
    time, too: theirs are when the engine last made a mount point in them.
    """
    times = (entry.status.st_mtime for entry in tree.walk() if entry.name in changes.others)
    cut = max(epoch, max((int(time) for time in times if time < started), default=epoch))
    bytecode.set_source_times(tree, changes.others, cut)
    os.utime(tree.root, (cut, cut))
    for entry in tree.walk():
        if entry.is_directory:
            os.utime(entry.at, (cut, cut), follow_symlinks=False)
    return cut


def _deleted(name: str) -> str:
    return f"{name} c 0 0 0 0 0"


def _quoted(path: PurePosixPath) -> str:
    return re.sub(r'([\s"\\#])', r"\\\1", str(path))  # a line that begins with # would be a comment

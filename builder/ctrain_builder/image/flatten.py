"""Flattens an image: one file system in place of a base and its layers, for engines that mount no overlay partitions.

The whole of it is packed as a container shows it, without a copy in between.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import host_tools, pack, sif_file
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.layer import read_metadata
from ctrain_runtime.store import sif

MAX_LAYERS = 8  # an image with more upper layers is flattened: see docs/layers.md

# Mounts hide what is below them and have times of this machine: they stay out, and what an image needs is put in.
_INSIDE = f"""\
while read -r _ _ _ _ point _; do echo "${{point#/}}"; done </proc/self/mountinfo | grep . >{host_tools.INSIDE}/mounts
cp -r /.singularity.d/. {host_tools.INSIDE}/metadata/
exec "$@"
"""
_NEEDED = (
    *(f"{name} d 755 0 0" for name in ("dev", "proc", "sys")),
    *(f"{name} f 644 0 0 true" for name in ("etc/hosts", "etc/resolv.conf")),
)
_TIME = struct.Struct("<8xI")  # in the head of a squashfs file: no file in it is newer


def flatten(
    container: Container,
    base: Path,
    layers: Sequence[Path],
    arch: str,
    labels: Mapping[str, str],
    log: Path,
    compression: str,
) -> Path:
    """Make the image of a base and its layers as one partition. Returns the new SIF, in the work directory."""
    directory = host_tools.prepare(container)
    (directory / "metadata").mkdir()
    container.new_overlay()
    host_tools.copy_tool(container, pack.mksquashfs())
    time = pack.epoch_env(_newest(base, layers))
    container.require(_pack_argv(container, base, layers, compression), log, "cannot flatten the image", time)
    container.take_ownership(base, [directory, *container.overlay_directories], log)
    metadata = read_metadata(Tree(directory), "metadata")
    return sif_file.new(container, pack.move_out(container), arch, metadata, labels, log)


def _pack_argv(container: Container, base: Path, layers: Sequence[Path], compression: str) -> list[str]:
    # With a writable overlay: over a read-only image the engine mounts its own /etc/passwd and /etc/group.
    overlays = [*LowerLayers(base, tuple(layers)).overlays, str(container.overlay)]
    argv = [*host_tools.exec_argv(container, base, overlays), "/bin/sh", "-ec", _INSIDE, "sh"]
    argv += [*host_tools.argv(pack.mksquashfs()), "/", f"{host_tools.INSIDE}/{pack.PACKED}"]
    needed = [word for entry in _NEEDED for word in ("-p", entry)]
    return [*argv, *pack.options(compression), *needed, "-ef", f"{host_tools.INSIDE}/mounts"]


def _newest(base: Path, layers: Sequence[Path]) -> int:
    """The latest of the times at which the layers' files are cut off."""
    places = [(base, sif.partitions(base)[0].offset), *((layer, 0) for layer in layers)]
    return max(_time(path, offset) for path, offset in places)


def _time(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        time: int = _TIME.unpack(file.read(_TIME.size))[0]
    return time

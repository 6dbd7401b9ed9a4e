"""Puts images together: a copy of the base's SIF with each layer appended as an overlay partition.

When an earlier image has the base and the lowest layers already, only what lies above them is replaced in it: then
gigabytes are neither read nor written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.layers import metadata, sif_file
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.layer import read_metadata
from ctrain_builder.tree import Tree
from ctrain_runtime import sif


@dataclass(frozen=True)
class ReusableImage:
    """An image that has the same base as the one to be made, and the same lowest `layers` layers on it."""

    path: Path
    layers: int


def assemble(
    container: Container,
    base: Path,
    layers: Sequence[Path],
    arch: str,
    labels: Mapping[str, str],
    log: Path,
    earlier: Optional[ReusableImage] = None,
) -> Path:
    """Make the image of a base and its layers, lowest first. Returns the new SIF, in the work folder.

    `labels` are the image's own; they come over those that its layers give. The file of `earlier` is used up.
    """
    look, start, add = assemble_argvs(container, base, layers, arch, earlier)
    (container.work / "metadata").mkdir()
    sif_file.run(container, look, log)
    # What `apptainer inspect` reads was written for the base alone.
    sif_file.write_inspection(container, read_metadata(Tree(container.work), "metadata"), labels)
    if earlier:
        earlier.path.replace(sif_file.output_path(container))
    sif_file.run(container, start, log)
    if earlier:
        _truncate(sif_file.output_path(container))
    sif_file.run(container, add, log)
    return sif_file.output_path(container)


def assemble_argvs(
    container: Container, base: Path, layers: Sequence[Path], arch: str, earlier: Optional[ReusableImage] = None
) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """The commands that look at what will be in the image, make a start of it, and add the rest."""
    image = str(sif_file.output_path(container))
    below = LowerLayers(base, tuple(layers))
    look = container.argv("exec", base, overlays=below.overlays, binds=[f"{container.work / 'metadata'}:/mnt"])
    delete = [container.engine.path, "sif", "del"]
    if earlier:
        start = [[*delete, str(number), image] for number in _above(earlier)]
    else:
        start = [["cp", "--reflink=auto", str(base), image], [*delete, str(sif_file.INSPECTION_NUMBER), image]]
    missing = layers[earlier.layers :] if earlier else layers
    return (
        [[*look, "cp", "-r", f"/{metadata.FOLDER}/.", "/mnt/"]],
        start,
        # First the JSON: a new object takes the lowest free number, and numbers give the order of layers.
        [sif_file.inspection_argv(container), *(sif_file.overlay_argv(container, layer, arch) for layer in missing)],
    )


def _above(earlier: ReusableImage) -> list[int]:
    """The numbers of what an earlier image has besides the definition, the base and the layers that are kept."""
    entries = sif.read(earlier.path).entries
    partitions = [entry.number for entry in entries if entry.kind == sif.PARTITION]
    kept = {sif_file.DEFINITION_NUMBER, *partitions[: 1 + earlier.layers]}
    return [entry.number for entry in reversed(entries) if entry.number not in kept]


def _truncate(path: Path) -> None:
    """Cut off what is behind the last object of a SIF: the engine leaves the place of a removed one as it is."""
    end = max(entry.offset + entry.size for entry in sif.read(path).entries)
    with path.open("r+b") as file:
        *head, data_offset, _ = sif.HEADER.unpack(file.read(sif.HEADER.size))
        file.seek(0)
        file.write(sif.HEADER.pack(*head, data_offset, end - data_offset))
        file.truncate(end)

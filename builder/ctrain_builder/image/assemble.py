"""Puts images together: a copy of the base's SIF with each layer appended as an overlay partition.

When an earlier image has the base and the lowest layers already, only what lies above them is replaced in it: then
gigabytes are neither read nor written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.layers import sif_file
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.layer import copy_metadata
from ctrain_runtime.store import sif


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
    """Make the image of a base and its layers, lowest first. Returns the new SIF, in the work directory.

    `labels` are the image's own; they come over those that its layers give. The file of `earlier` is used up.
    """
    image = sif_file.output_path(container)
    # What `apptainer inspect` reads was written for the base alone.
    sif_file.write_inspection(container, copy_metadata(container, LowerLayers(base, tuple(layers)), log), labels)
    delete = [container.engine.path, "sif", "del"]
    if earlier:
        numbers, missing = _above(earlier), layers[earlier.layers :]
        earlier.path.replace(image)
        sif_file.run(container, [[*delete, str(number), str(image)] for number in numbers], log)
        _truncate(image)
    else:
        missing = layers
        copy = ["cp", "--reflink=auto", str(base), str(image)]
        sif_file.run(container, [copy, [*delete, str(sif_file.INSPECTION_NUMBER), str(image)]], log)
    # First the JSON: a new object takes the lowest free number, and numbers give the order of layers.
    add = [sif_file.inspection_argv(container), *(sif_file.overlay_argv(container, layer, arch) for layer in missing)]
    sif_file.run(container, add, log)
    return image


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

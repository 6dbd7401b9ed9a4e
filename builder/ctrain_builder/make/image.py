"""Puts images together: the SIF of a base, and a copy of it with each layer appended as an overlay partition.

When an earlier image has the base and the lowest layers already, only what lies above them is replaced in it: then
gigabytes are neither read nor written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.make import metadata
from ctrain_builder.make.container import Below, Container, Failed
from ctrain_builder.make.layer import read_metadata
from ctrain_builder.tree import Tree
from ctrain_runtime import sif
from ctrain_runtime.errors import BuildError

# Numbers of `apptainer sif add`: data types, file systems, partition types and architectures of the SIF format.
_DEFINITION = ("--datatype", "1", "--groupid", "1")
_SYSTEM = ("--datatype", "4", "--partfs", "1", "--parttype", "2", "--groupid", "1")
_OVERLAY = ("--datatype", "4", "--partfs", "1", "--parttype", "4", "--groupid", "1")
_ARCHITECTURES = {"amd64": "2", "arm64": "4", "ppc64le": "6"}
_LAUNCH = b"#!/usr/bin/env run-singularity\n"  # the start of every SIF: it can be executed

INSPECTION = "inspect-metadata.json"  # the name under which `apptainer inspect` looks for it
_JSON = ("--datatype", "6", "--groupid", "1", "--filename", INSPECTION)  # a name that is not given is empty
_DEFINITION_NUMBER, _INSPECTION_NUMBER = 1, "2"  # of the first objects of a base


def new(
    container: Container, system: Path, arch: str, files: Mapping[str, str], labels: Mapping[str, str], log: Path
) -> Path:
    """Make the SIF of one squashfs file, as `apptainer build` would. Returns it, in the work folder.

    `files` are those of its /.singularity.d, name -> content; `labels` come over the labels in them. The file `system`
    is used up.
    """
    (container.work / "definition").write_text(files.get("Singularity", ""), encoding="utf-8")
    _write_inspection(container, files, labels)
    _run(container, new_argvs(container, system, arch), log)
    system.unlink()  # its content is in the image now; of 20 GB one copy is enough
    with made(container).open("r+b") as file:
        file.write(_LAUNCH)
    return made(container)


@dataclass(frozen=True)
class Earlier:
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
    earlier: Optional[Earlier] = None,
) -> Path:
    """Make the image of a base and its layers, lowest first. Returns the new SIF, in the work folder.

    `labels` are the image's own; they come over those that its layers give. The file of `earlier` is used up.
    """
    look, start, add = assemble_argvs(container, base, layers, arch, earlier)
    (container.work / "metadata").mkdir()
    _run(container, look, log)
    # What `apptainer inspect` reads was written for the base alone.
    _write_inspection(container, read_metadata(Tree(container.work), "metadata"), labels)
    if earlier:
        earlier.path.replace(made(container))
    _run(container, start, log)
    if earlier:
        _cut(made(container))
    _run(container, add, log)
    return made(container)


def new_argvs(container: Container, system: Path, arch: str) -> list[list[str]]:
    image, add = _add(container)
    return [
        [container.engine.path, "sif", "new", image],
        [*add, *_DEFINITION, image, str(container.work / "definition")],
        [*add, *_JSON, image, str(container.work / INSPECTION)],
        [*add, *_SYSTEM, "--partarch", _ARCHITECTURES[arch], image, str(system)],
    ]


def assemble_argvs(
    container: Container, base: Path, layers: Sequence[Path], arch: str, earlier: Optional[Earlier] = None
) -> tuple[list[list[str]], list[list[str]], list[list[str]]]:
    """The commands that look at what will be in the image, make a start of it, and add the rest."""
    image, add = _add(container)
    below = Below(base, tuple(layers))
    look = container.argv("exec", base, overlays=below.overlays, binds=[f"{container.work / 'metadata'}:/mnt"])
    overlay = [*add, *_OVERLAY, "--partarch", _ARCHITECTURES[arch], image]
    delete = [container.engine.path, "sif", "del"]
    if earlier:
        start = [[*delete, str(number), image] for number in _above(earlier)]
    else:
        start = [["cp", "--reflink=auto", str(base), image], [*delete, _INSPECTION_NUMBER, image]]
    missing = layers[earlier.layers :] if earlier else layers
    return (
        [[*look, "cp", "-r", f"/{metadata.FOLDER}/.", "/mnt/"]],
        start,
        # First the JSON: a new object takes the lowest free number, and numbers give the order of layers.
        [[*add, *_JSON, image, str(container.work / INSPECTION)], *([*overlay, str(layer)] for layer in missing)],
    )


def _above(earlier: Earlier) -> list[int]:
    """The numbers of what an earlier image has besides the definition, the base and the layers that are kept."""
    entries = sif.read(earlier.path).entries
    partitions = [entry.number for entry in entries if entry.kind == sif.PARTITION]
    kept = {_DEFINITION_NUMBER, *partitions[: 1 + earlier.layers]}
    return [entry.number for entry in reversed(entries) if entry.number not in kept]


def _cut(path: Path) -> None:
    """Cut off what is behind the last object of a SIF: the engine leaves the place of a removed one as it is."""
    end = max(entry.offset + entry.size for entry in sif.read(path).entries)
    with path.open("r+b") as file:
        *head, data_offset, _ = sif.HEADER.unpack(file.read(sif.HEADER.size))
        file.seek(0)
        file.write(sif.HEADER.pack(*head, data_offset, end - data_offset))
        file.truncate(end)


def _add(container: Container) -> tuple[str, list[str]]:
    return str(made(container)), [container.engine.path, "sif", "add"]


def made(container: Container) -> Path:
    """Where an image is put together."""
    return container.work / "image.sif"


def _write_inspection(container: Container, files: Mapping[str, str], labels: Mapping[str, str]) -> None:
    text = json.dumps(metadata.inspection(files, labels), sort_keys=True)
    (container.work / INSPECTION).write_text(text, encoding="utf-8")


def _run(container: Container, argvs: Sequence[Sequence[str]], log: Path) -> None:
    for argv in argvs:
        try:
            container.run(argv, log)
        except Failed as error:
            what = f"the image can't be put together (exit code {error.code})"
            raise BuildError(what, f"The log is {log}") from error

"""Writes SIF files with the engine: a new one of one file system, and the objects that all images have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ctrain_builder.layers import metadata
from ctrain_builder.layers.container import Container

# Numbers of `apptainer sif add`: data types, file systems, partition types and architectures of the SIF format.
_DEFINITION = ("--datatype", "1", "--groupid", "1")
_SYSTEM = ("--datatype", "4", "--partfs", "1", "--parttype", "2", "--groupid", "1")
_OVERLAY = ("--datatype", "4", "--partfs", "1", "--parttype", "4", "--groupid", "1")
_ARCHITECTURES = {"amd64": "2", "arm64": "4", "ppc64le": "6"}
_LAUNCH = b"#!/usr/bin/env run-singularity\n"  # the start of every SIF: it can be executed
_INSPECTION = "inspect-metadata.json"  # the name under which `apptainer inspect` looks for it
_JSON = ("--datatype", "6", "--groupid", "1", "--filename", _INSPECTION)  # a name that is not given is empty
DEFINITION_NUMBER, INSPECTION_NUMBER = 1, 2  # of the first objects of a new file


def new(
    container: Container, system: Path, arch: str, files: Mapping[str, str], labels: Mapping[str, str], log: Path
) -> Path:
    """Make the SIF of one squashfs file, as `apptainer build` would. Returns it, in the work directory.

    `files` are those of its /.singularity.d, name -> content; `labels` come over the labels in them. The file `system`
    is used up. Raises BuildError.
    """
    (container.work / "definition").write_text(files.get("Singularity", ""), encoding="utf-8")
    write_inspection(container, files, labels)
    make = [container.engine.path, "sif", "new", str(output_path(container))]
    definition = _add(container, _DEFINITION, container.work / "definition")
    content = _add(container, (*_SYSTEM, "--partarch", _ARCHITECTURES[arch]), system)
    run(container, [make, definition, inspection_argv(container), content], log)
    system.unlink()  # its content is in the image now; of 20 GB one copy is enough
    with output_path(container).open("r+b") as file:
        file.write(_LAUNCH)
    return output_path(container)


def overlay_argv(container: Container, layer: Path, arch: str) -> list[str]:
    """The command that appends a layer to the SIF."""
    return _add(container, (*_OVERLAY, "--partarch", _ARCHITECTURES[arch]), layer)


def inspection_argv(container: Container) -> list[str]:
    """The command that appends what `apptainer inspect` reads to the SIF."""
    return _add(container, _JSON, container.work / _INSPECTION)


def write_inspection(container: Container, files: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Write the file of `inspection_argv`."""
    text = json.dumps(metadata.inspection(files, labels), sort_keys=True)
    (container.work / _INSPECTION).write_text(text, encoding="utf-8")


def output_path(container: Container) -> Path:
    """Where a SIF is put together."""
    return container.work / "image.sif"


def run(container: Container, argvs: Sequence[Sequence[str]], log: Path) -> None:
    """Run such commands. Raises BuildError."""
    for argv in argvs:
        container.require(argv, log, "cannot assemble the image")


def _add(container: Container, options: Sequence[str], file: Path) -> list[str]:
    return [container.engine.path, "sif", "add", *options, str(output_path(container)), str(file)]

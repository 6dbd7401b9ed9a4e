"""Puts an image together: a copy of the base, with each layer appended as an overlay partition."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ctrain_builder.make import metadata
from ctrain_builder.make.container import Container, Failed
from ctrain_builder.make.layer import read_metadata
from ctrain_runtime.errors import BuildError

# Numbers of `apptainer sif add`: data types, file systems, partition types and architectures of the SIF format.
_PARTITION = ("--datatype", "4", "--partfs", "1", "--parttype", "4", "--groupid", "1")
_JSON = ("--datatype", "6", "--groupid", "1")
_ARCHITECTURES = {"amd64": "2", "arm64": "4", "ppc64le": "6"}
INSPECTION = "inspect-metadata.json"  # the name under which `apptainer inspect` looks for it


def assemble(container: Container, base: Path, layers: Sequence[Path], arch: str, log: Path) -> Path:
    """Make the image of a base and its layers, lowest first. Returns the new SIF, in the work folder."""
    image = container.work / "image.sif"
    add = [container.engine.path, "sif", "add", "--partarch", _ARCHITECTURES[arch], *_PARTITION, str(image)]
    try:
        container.run(["cp", "--reflink=auto", str(base), str(image)], log)
        for layer in layers:
            container.run([*add, str(layer)], log)
        if layers:
            _replace_inspection(container, image, log)
    except Failed as error:
        raise BuildError(f"the image can't be put together (exit code {error.code})", f"The log is {log}") from error
    return image


def _replace_inspection(container: Container, image: Path, log: Path) -> None:
    """Make `apptainer inspect` tell of the whole image: what it reads was written for the base alone.

    After the layers: a new object takes the number of a removed one, and the order of layers is that of their numbers.
    """
    lent = container.work / "inspection"
    lent.mkdir()
    argv = container.argv("exec", image, binds=[f"{lent}:/mnt"])
    container.run([*argv, "cp", "-r", "/.singularity.d/.", "/mnt/"], log)
    new = container.work / INSPECTION
    new.write_text(json.dumps(metadata.inspection(read_metadata(lent))), encoding="utf-8")
    engine = container.engine.path
    for number in re.findall(r"(?m)^(\d+)\s.*JSON\.Generic", container.output([engine, "sif", "list", str(image)])):
        container.run([engine, "sif", "del", number, str(image)], log)
    container.run([engine, "sif", "add", *_JSON, "--filename", INSPECTION, str(image), str(new)], log)

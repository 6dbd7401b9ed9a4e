"""The image that a run uses: found by name in a store or by path, and checked to be a whole SIF for this machine.

The SIF layout (128-byte header, 585-byte descriptors, little-endian) is that of the SIF specification,
version 01, as written by Singularity 3.x and 4.x and every Apptainer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime import store
from ctrain_runtime.errors import ConfigError, ImageDamaged, ImageNotFound

HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
PARTITION = 0x4004
ARCHITECTURES = {"02": "amd64", "04": "arm64", "06": "ppc64le"}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}  # as `uname -m` says it


@dataclass(frozen=True)
class Image:
    """An image file with its manifest. `channel` is the name by which it was found, if any."""

    path: Path
    manifest: store.Manifest
    channel: str = ""


def find(references: tuple[str, ...], stores: list[store.Store], machine: str) -> Image:
    """The image for the first of `references` (NAME[:CHANNEL|:VERSION], NAME@DIGEST or a path) that exists.

    `machine` is what `uname -m` says. Raises ImageNotFound or ImageDamaged.
    """
    image = _at_path(Path(references[0])) if is_path(references[0]) else _in_stores(references, stores)
    architecture = check_sif(image.path)
    if architecture != MACHINES.get(machine, machine):
        raise ImageDamaged(f"{image.path} is for {architecture}, this machine is {machine}", "Choose another image")
    if image.path.stat().st_size != image.manifest.size:
        raise ImageDamaged(
            f"{image.path} has {image.path.stat().st_size} bytes, its manifest says {image.manifest.size}",
            "Publish or copy it again",
        )
    return image


def is_path(reference: str) -> bool:
    return "/" in reference or reference.endswith(".sif")


def _at_path(path: Path) -> Image:
    if not path.is_file():
        raise ImageNotFound(f"there is no image file {path}", "ctrain images lists the published ones")
    check_sif(path)
    beside = path.resolve().with_suffix(".json")
    if not beside.is_file():
        raise ImageDamaged(
            f"{path} was not made by ctrain: no manifest {beside.name} lies beside it",
            "Copy the .json together with the .sif, or build the image with ctrain build",
        )
    try:
        return Image(path.resolve(), store.read_manifest(beside))
    except ConfigError as error:
        raise ImageDamaged(error.message, error.hint) from error


def _in_stores(references: tuple[str, ...], stores: list[store.Store]) -> Image:
    missing = None
    for reference in references:
        try:
            found = store.resolve(stores, reference)
        except ImageNotFound as error:
            missing = missing or error
            continue
        channel = store.DEFAULT_CHANNEL if store.DEFAULT_CHANNEL in found.channels else "".join(found.channels[:1])
        return Image(found.path, found.manifest, channel)
    raise missing or ImageNotFound("the job names no image", "Give one with --image")


def check_sif(path: Path) -> str:
    """Check that `path` is a whole SIF file and return its architecture (amd64, arm64 ...).

    Raises ImageDamaged when the file can't be read, is no SIF or is cut off.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            raw = file.read(HEADER.size)
            if len(raw) < HEADER.size or HEADER.unpack(raw)[1] != b"SIF_MAGIC\0":
                raise ImageDamaged(f"{path} is not a SIF image", "Build one with: ctrain build")
            _, _, _, arch, _, _, _, _, total, offset, length, data_offset, data_size = HEADER.unpack(raw)
            if max(offset + length, data_offset + data_size) > size:
                raise _truncated(path, size, max(offset + length, data_offset + data_size))
            file.seek(offset)
            descriptors = [DESCRIPTOR.unpack(file.read(DESCRIPTOR.size)) for _ in range(total)]
    except struct.error as error:
        raise ImageDamaged(f"{path} has a damaged SIF header", "Publish or copy it again") from error
    except OSError as error:
        raise ImageDamaged(f"{path} can't be read: {error.strerror}", "Check its permissions") from error
    used = [entry for entry in descriptors if entry[1]]
    end = max((entry[5] + entry[6] for entry in used), default=0)
    if end > size:
        raise _truncated(path, size, end)
    if not any(entry[0] == PARTITION for entry in used):
        raise ImageDamaged(f"{path} is a SIF without a file system in it", "Build one with: ctrain build")
    return ARCHITECTURES.get(arch[:2].decode("ascii", "replace"), "an unknown architecture")


def _truncated(path: Path, size: int, needed: int) -> ImageDamaged:
    return ImageDamaged(f"{path} is truncated: {size} bytes of {needed}", "Publish or copy it again")

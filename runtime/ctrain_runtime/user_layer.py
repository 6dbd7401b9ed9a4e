"""User layers: squashfs files that add packages to one image. Format: docs/user-layers.md.

    squashfs | description (JSON) | its length | SHA-256 of all before | MAGIC

What follows a squashfs does not matter to those who mount it, and so one file holds all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime import config
from ctrain_runtime.errors import ConfigError, ImageUnusable

USER_LAYERS = ".singularity.d/ctrain-user-layers"  # inside; holds KEY.json of each layer that is mounted
MAGIC = b"ctrain layer v1\n"
_LENGTH = struct.Struct("<Q")
_SEAL = struct.Struct("<32s16s")
_SQUASHFS = b"hsqs"
_KEY = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Parent:
    """The image that a layer was built on."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True)
class Description:
    """What a layer is. `packages` holds the Python packages that it adds: name -> version."""

    key: str
    parent: Parent
    source: str  # name of the file that it was made from
    source_digest: str
    built: str
    packages: dict[str, str]

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


@dataclass(frozen=True)
class UserLayer:
    """The file of a user layer; `digest` is that of the whole file, as in sha256:9f2c..."""

    path: Path
    digest: str
    description: Description


def seal(path: Path, description: Description) -> None:
    """Make a user layer of a squashfs file: append its description."""
    text = description.as_json().encode()
    with path.open("r+b") as file:
        sha = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            sha.update(chunk)
        end = text + _LENGTH.pack(len(text))
        sha.update(end)
        file.write(end + _SEAL.pack(sha.digest(), MAGIC))


def read(path: Path) -> UserLayer:
    """The user layer at `path`, whole as it was made. Raises ImageUnusable."""
    try:
        return _read(path)
    except OSError as error:
        raise ImageUnusable(f"layer {path} can't be read: {error.strerror}", "Check its path") from error
    except (ConfigError, ValueError) as error:
        raise ImageUnusable(f"layer {path} is not one of this ctrain: {error}", "Build it again, or update") from error


def _read(path: Path) -> UserLayer:
    with path.open("rb") as file:
        if file.read(len(_SQUASHFS)) != _SQUASHFS:
            raise ImageUnusable(f"{path} is not a layer: it is no squashfs", "Build one with: ctrain layer build")
        sealed = path.stat().st_size - _SEAL.size
        file.seek(max(0, sealed))
        seal = file.read()
        if len(seal) != _SEAL.size or not seal.endswith(MAGIC):
            raise ImageUnusable(f"layer {path} is cut off, or was not made by ctrain", "Copy or build it again")
        sha = hashlib.sha256()
        file.seek(0)
        for start in range(0, sealed, _CHUNK_BYTES):
            sha.update(file.read(min(_CHUNK_BYTES, sealed - start)))
        if sha.digest() != _SEAL.unpack(seal)[0]:
            raise ImageUnusable(
                f"layer {path} was changed since it was built: its checksum is wrong", "Copy or build it again"
            )
        sha.update(seal)
        file.seek(sealed - _LENGTH.size)
        length = _LENGTH.unpack(file.read(_LENGTH.size))[0]
        file.seek(sealed - _LENGTH.size - length)
        description = config.load(Description, json.loads(file.read(length)), "its description")
    if not _KEY.fullmatch(description.key):  # it becomes part of the ranks' scripts
        raise ValueError("its key is none")
    return UserLayer(path.resolve(), f"sha256:{sha.hexdigest()}", description)

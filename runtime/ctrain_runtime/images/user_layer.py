"""User layers: squashfs files that add packages to one image. Format: docs/user-layers.md.

    squashfs | description (JSON) | its length | SHA-256 of everything before | MAGIC

Mounting a squashfs ignores trailing data, so a single file is enough.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base import config
from ctrain_runtime.base.digest import read_chunks
from ctrain_runtime.errors import ConfigError, ImageUnusable

USER_LAYERS = ".singularity.d/ctrain-user-layers"  # in the container; holds KEY.json of each mounted layer
MAGIC = b"ctrain layer v1\n"
_NEWER = re.compile(rb"ctrain layer v(\d+)\n\Z")
_LENGTH = struct.Struct("<Q")
_SEAL = struct.Struct("<32s16s")
_SQUASHFS = b"hsqs"
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Parent:
    """The image on which a layer was built."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True)
class Description:
    """The metadata of a layer. `packages`: the Python packages that it adds, name -> version."""

    key: str
    parent: Parent
    source: str  # name of the file from which it was built
    source_digest: str
    built: str
    packages: dict[str, str]

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


@dataclass(frozen=True)
class UserLayer:
    """A user layer; `digest` is that of the whole file, as in sha256:9f2c..."""

    path: Path
    digest: str
    description: Description


def seal(path: Path, description: Description) -> None:
    """Turn the squashfs file `path` into a user layer: append its description."""
    text = description.as_json().encode()
    with path.open("r+b") as file:
        sha = hashlib.sha256()
        for chunk in read_chunks(file):
            sha.update(chunk)
        end = text + _LENGTH.pack(len(text))
        sha.update(end)
        file.write(end + _SEAL.pack(sha.digest(), MAGIC))


def read(path: Path) -> UserLayer:
    """The user layer at `path`, with its checksum verified. Raises ImageUnusable."""
    if path.exists() and not path.is_file():  # a FIFO would never be opened
        raise ImageUnusable(f"{path} is not a user layer: not a regular file", "Build one with: ctrain layer build")
    try:
        return _read(path)
    except OSError as error:
        raise ImageUnusable(f"cannot read layer {path}: {error.strerror}", "Check the path") from error
    except (ConfigError, ValueError, RecursionError) as error:
        raise ImageUnusable(f"unsupported layer {path}: {error}", "Rebuild it, or upgrade ctrain") from error


def _read(path: Path) -> UserLayer:
    with path.open("rb") as file:
        if file.read(len(_SQUASHFS)) != _SQUASHFS:
            raise ImageUnusable(f"{path} is not a user layer: not a squashfs", "Build one with: ctrain layer build")
        sealed = path.stat().st_size - _SEAL.size
        file.seek(max(0, sealed))
        seal = file.read()
        if (newer := _NEWER.search(seal)) and not seal.endswith(MAGIC):
            problem = f"unsupported version {int(newer[1])} of layer {path} (supported: 1)"
            raise ImageUnusable(problem, "Upgrade ctrain, or build it again with this one")
        if len(seal) != _SEAL.size or not seal.endswith(MAGIC):
            raise ImageUnusable(f"layer {path} is truncated, or was not built by ctrain", "Copy or build it again")
        sha = hashlib.sha256()
        file.seek(0)
        for chunk in read_chunks(file, sealed):
            sha.update(chunk)
        if sha.digest() != _SEAL.unpack(seal)[0]:
            raise ImageUnusable(f"checksum mismatch: layer {path} was modified", "Copy or build it again")
        sha.update(seal)
        file.seek(sealed - _LENGTH.size)
        length = _LENGTH.unpack(file.read(_LENGTH.size))[0]
        file.seek(sealed - _LENGTH.size - length)
        description = config.load(Description, json.loads(file.read(length)), "its description")
    if not _KEY.fullmatch(description.key):  # it is inserted into the ranks' scripts
        raise ValueError("invalid key")
    return UserLayer(path.resolve(), f"sha256:{sha.hexdigest()}", description)

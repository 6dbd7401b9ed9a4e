"""The signatures of a published image: in its file, from when it was published; and beside it, added later.

    STORE/signatures/STEM.KEY.sif    a small SIF with a statement, signed by the engine as any image is

A published file is never written to, so a signature that is added covers a statement about it: the line by which
`sha256sum --check` recognises it, with the version in the file name. It is verified with the engine, like an image.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
from pathlib import Path

from ctrain_runtime import sif
from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.manifest import Manifest

SIGNATURES = "signatures"
_STATEMENT = 0x4007  # object type: generic data
_ENTITY = slice(4, 24)  # of a signature's descriptor: the fingerprint of a PGP key


def statement(manifest: Manifest) -> bytes:
    """What an added signature of this version covers."""
    return f"{manifest.digest.partition(':')[2]}  {manifest.file_name}\n".encode()


def path_for(image: Path, key: str) -> Path:
    """Where the signature by `key` is added."""
    return image.parent / SIGNATURES / f"{image.stem}.{key_id(key)}.sif"


def key_id(key: str) -> str:
    """What stands for a key in file names and tags."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def added(image: Path) -> list[Path]:
    """The files of signatures that were added to an image, valid or not."""
    return sorted((image.parent / SIGNATURES).glob(f"{glob.escape(image.stem)}.*.sif"))


def signed_stems(root: Path) -> set[str]:
    """The images of a store with added signatures, valid or not: their file names without .sif."""
    return {path.name.rsplit(".", 2)[0] for path in (root / SIGNATURES).glob("[!.]*.sif")}


def covers(path: Path, manifest: Manifest) -> bool:
    """Whether an added signature is whole, and one of this version and digest; not whether it is valid."""
    try:
        return sif.object_bytes(path, _STATEMENT) == statement(manifest)
    except ImageUnusable:
        return False


def keys(path: Path) -> list[str]:
    """The keys that the signatures in a file name, unverified: a PGP fingerprint, or SHA256:... as OpenSSH computes it.

    Raises ImageUnusable.
    """
    found: list[str] = []
    for entry in sif.read(path).entries:
        if entry.kind == sif.SIGNATURE:
            fingerprint = entry.extra[_ENTITY].hex().upper()
            found.extend(_key_ids(sif.entry_bytes(path, entry)) or [fingerprint])
    return list(dict.fromkeys(found))


def _key_ids(signature: bytes) -> list[str]:
    """The key IDs of a signature by PEM keys (a DSSE envelope); [] for another one."""
    ids: list[str] = []
    with contextlib.suppress(ValueError, KeyError, TypeError):
        ids = [str(one["keyid"]) for one in json.loads(signature)["signatures"]]
    return ids

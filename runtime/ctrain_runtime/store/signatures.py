"""The signatures of a published image: beside it, on a statement of its name and digest; and in its file. User layers
have one beside them.

    STORE/signatures/STEM.KEY.sif    a small SIF with a statement, signed by the engine as any image is
    LAYER.sig                        the same with a statement of a user layer's digest: its name means nothing

The statement is the line by which `sha256sum --check` recognises the image, with the version in the file name. It is
what a run asks for: a signature in the file does not know under which name, or for which version, the file is offered.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
from pathlib import Path

from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Manifest

SIGNATURES = "signatures"
_STATEMENT = 0x4007  # object type: generic data
_GROUP_NUMBER = 0x0FFFFFFF  # of the group that an object is in; 0 for none
_ENTITY = slice(4, 24)  # of a signature's descriptor: the fingerprint of a PGP key


def statement(manifest: Manifest) -> bytes:
    """What an added signature of this version covers."""
    return f"{manifest.digest.partition(':')[2]}  {manifest.file_name}\n".encode()


def layer_statement(digest: str) -> bytes:
    """What the signature of a user layer covers."""
    return f"{digest.partition(':')[2]}  user layer\n".encode()


def path_for_layer(layer: Path) -> Path:
    """Where the signature of a user layer is."""
    return layer.with_name(f"{layer.name}.sig")


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
    """Whether a file holds the statement of this version and digest, as `holds`."""
    return holds(path, statement(manifest))


def holds(path: Path, text: bytes) -> bool:
    """Whether a file holds this statement, and nothing else that is signed; not whether its signature is valid."""
    try:
        held = [entry for entry in sif.read(path).entries if entry.kind != sif.SIGNATURE]
        return [entry.kind for entry in held] == [_STATEMENT] and sif.entry_bytes(path, held[0]) == text
    except ImageUnusable:
        return False


def is_whole(path: Path) -> bool:
    """Whether each signature in a file is one of all its objects; not whether it is valid. False without any.

    In a SIF each group of objects has signatures of its own: a file may have that of one key on a small object, and
    that of another key on its file system. Raises ImageUnusable.
    """
    entries = sif.read(path).entries
    signed = {entry.link for entry in entries if entry.kind == sif.SIGNATURE}
    groups = {entry.group for entry in entries if entry.kind != sif.SIGNATURE}
    return len(groups) == 1 and groups == signed and all(group & _GROUP_NUMBER for group in groups)


def keys(path: Path) -> list[str]:
    """The keys that the signatures in a file name, unverified: a PGP fingerprint, or SHA256:... as OpenSSH computes it.

    None of a file of which only a part is signed. Raises ImageUnusable.
    """
    identifiers: list[str] = []
    for entry in sif.read(path).entries if is_whole(path) else ():
        if entry.kind == sif.SIGNATURE:
            fingerprint = entry.extra[_ENTITY].hex().upper()
            identifiers.extend(_key_ids(sif.entry_bytes(path, entry)) or [fingerprint])
    return list(dict.fromkeys(identifiers))


def _key_ids(signature: bytes) -> list[str]:
    """The key IDs of a signature by PEM keys (a DSSE envelope); [] for another one."""
    ids: list[str] = []
    with contextlib.suppress(ValueError, KeyError, TypeError):
        ids = [str(one["keyid"]) for one in json.loads(signature)["signatures"]]
    return ids

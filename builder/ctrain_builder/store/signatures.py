"""Adds signatures to published versions: by a second key, or by the next one when keys are rotated.

A published file is never written to, and engines keep a signature in the file that it covers. So a small SIF of its own
is signed, which holds a statement about the version: see ctrain_runtime.signatures.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ctrain_builder import atomic
from ctrain_builder.store import log
from ctrain_builder.store.copy import finalise
from ctrain_builder.store.sign import Signer
from ctrain_builder.store.writer import LockedStore, lock_store
from ctrain_runtime import command, signatures
from ctrain_runtime.manifest import Manifest
from ctrain_runtime.references import resolve
from ctrain_runtime.store import PublishedImage

_OBJECT = ("--datatype", "7", "--groupid", "1")  # generic data, in the group that is signed


def sign(root: Path, image: PublishedImage, signer: Signer, say: Callable[[str], None] = lambda _: None) -> str:
    """Add a signature to a version; the key, or "" if it has a signature by this key already.

    The store's lock is not held while somebody types a passphrase. Raises ImageNotFound, StoreError.
    """
    with tempfile.TemporaryDirectory() as directory:
        signed = _sign_statement(Path(directory), image.manifest, signer)
        (key,) = signatures.keys(signed)
        if key in present(image):
            return ""
        with lock_store(root, say) as writer:
            resolve([writer.store], f"{image.manifest.name}@{image.manifest.digest}")  # others retire meanwhile
            put(writer, image, key, signed.read_bytes())
    return key


def present(image: PublishedImage) -> set[str]:
    """The keys that have signed a version, as its signatures say: damaged ones do not count. Raises ImageUnusable."""
    added = (path for path in signatures.added(image.path) if signatures.covers(path, image.manifest))
    return {key for path in (image.path, *added) for key in signatures.keys(path)}


def put(writer: LockedStore, image: PublishedImage, key: str, content: bytes) -> None:
    """Put an added signature in its place."""
    directory = writer.directory(signatures.SIGNATURES)
    target = signatures.path_for(image.path, key)
    manifest = image.manifest
    writer.log(log.SIGN, manifest.name, manifest.version, digest=manifest.digest, why=f"key {key}")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        finalise(temporary, writer.access)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    atomic.sync_directory(directory)


def _sign_statement(directory: Path, manifest: Manifest, signer: Signer) -> Path:
    statement, signed = directory / "statement", directory / "signature.sif"
    statement.write_bytes(signatures.statement(manifest))
    engine = [signer.engine.path, "--quiet", "sif"]
    command.run([*engine, "new", str(signed)])
    command.run([*engine, "add", *_OBJECT, str(signed), str(statement)])
    signer.sign(signed)
    return signed

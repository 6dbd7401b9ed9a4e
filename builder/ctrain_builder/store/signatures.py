"""Signatures on the name, version and digest of a version: when it is published, and later by other keys.

A published file is never written to, and engines keep a signature in the file that it covers. So a small SIF of its own
is signed, which holds a statement about the version: see ctrain_runtime.store.signatures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.files import atomic
from ctrain_builder.store import log
from ctrain_builder.store.sign import Signer
from ctrain_builder.store.writer import LockedStore, lock_store
from ctrain_runtime.base import command
from ctrain_runtime.base.digest import file_digest, short
from ctrain_runtime.errors import ImageUnusable, StoreError
from ctrain_runtime.store import signatures
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.references import resolve
from ctrain_runtime.store.store import PublishedImage

_OBJECT = ("--datatype", "7", "--groupid", "1")  # generic data, in the group that is signed


@dataclass(frozen=True)
class Signature:
    """The contents of a file with a signed statement, and the key that it names."""

    key: str
    content: bytes


def sign(
    root: Path, image: PublishedImage, signer: Signer, say: Callable[[str], None] = lambda _: None, digest: str = ""
) -> str:
    """Add a signature to a version; the key, or "" if it has a signature by this key already. `digest`: that of its
    file, if that was just read; else it is read, since a key must not vouch for what nobody has read.

    The store's lock is not held while somebody types a passphrase. Raises ImageNotFound, ImageUnusable, StoreError.
    """
    if is_signed(image, signer):
        return ""
    digest = digest or file_digest(image.path)
    if digest != image.manifest.digest:
        problem = (
            f"digest mismatch: {image.path} is {short(digest)}, its manifest records {short(image.manifest.digest)}"
        )
        raise ImageUnusable(problem, "It was modified after publishing; see: ctrain store verify")
    signature = make(image.manifest, signer)
    with lock_store(root, say) as writer:
        current = resolve([writer.store], image.manifest.reference)  # others retire meanwhile
        if current.manifest.digest != image.manifest.digest:
            what = f"{image.manifest.reference} became another image while it was signed"
            raise StoreError(what, "Check it with: ctrain store verify")
        put(writer, image, signature)
    return signature.key


def is_signed(image: PublishedImage, signer: Signer) -> bool:
    """Whether a version has a valid signature by this key on its name, version and digest."""
    added = (path for path in signatures.added(image.path) if signatures.covers(path, image.manifest))
    return any(signer.has_signed(path) for path in added)


def put(writer: LockedStore, image: PublishedImage, signature: Signature) -> None:
    """Put an added signature in its place."""
    writer.directory(signatures.SIGNATURES)
    target = signatures.path_for(image.path, signature.key)
    manifest = image.manifest
    writer.log(log.SIGN, manifest.name, manifest.version, digest=manifest.digest, why=f"key {signature.key}")
    atomic.write_bytes(target, signature.content, writer.access.file, writer.access.group)


def make(manifest: Manifest, signer: Signer) -> Signature:
    """A signature on the name, version and digest of a version. Raises StoreError."""
    return sign_statement(signatures.statement(manifest), signer)


def sign_statement(text: bytes, signer: Signer) -> Signature:
    """A signature on a statement. Raises StoreError."""
    with tempfile.TemporaryDirectory() as directory:
        statement, signed = Path(directory, "statement"), Path(directory, "signature.sif")
        statement.write_bytes(text)
        engine = [signer.engine.path, "--quiet", "sif"]
        command.run([*engine, "new", str(signed)])
        command.run([*engine, "add", *_OBJECT, str(signed), str(statement)])
        signer.sign(signed)
        (key,) = signatures.keys(signed)
        return Signature(key, signed.read_bytes())

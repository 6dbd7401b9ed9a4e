"""Verifies images and user layers before a run: their signatures, and an image's digest against the manifest.

An image with a manifest needs a signature on its name, version and digest; one without any names nothing but itself, so
that a signature in its file is enough. The checks read the whole file, which takes seconds per 10 GB. The result is
cached per machine and user, keyed by the file's inode, size and timestamps.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ctrain_runtime.base import command
from ctrain_runtime.base.digest import file_digest, short
from ctrain_runtime.base.user_cache import UserCache, file_conditions
from ctrain_runtime.engines.apptainer import Engine, clean_environ, find_engine, verifies_pem_keys
from ctrain_runtime.errors import CtrainError, ImageUnusable, SiteError, UsageError
from ctrain_runtime.images.image import Image, is_foreign, is_path
from ctrain_runtime.images.user_layer import UserLayer
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import SelectedSite
from ctrain_runtime.store import sif, signatures

CACHE = "verified"
_RULES = 2  # changes with what is asked of an image: what an earlier ctrain has verified is verified again
_FINGERPRINT = re.compile(r"[0-9A-F]{40}", re.IGNORECASE)  # of a PGP key
_KEY_RING = ("APPTAINER_KEYSDIR", "SINGULARITY_KEYSDIR", "SINGULARITY_SYPGPDIR")  # variables of engines
_READ_TIMEOUT_SECONDS = 3600  # for verifying one image


def require_allowed(reference: str, selected: SelectedSite) -> None:
    """Raise ImageUnusable for a path or a pulled image where the site allows only images of its stores."""
    if selected.site.images == "any" or not is_path(reference):
        return
    stores = {Path(store).resolve() for store in selected.store_dirs()}
    if is_foreign(reference) or Path(reference).resolve().parent not in stores:
        problem = f"site {selected.site.name} runs only images of its stores, not {reference}"
        raise ImageUnusable(f"{problem} ({selected.sources['images']})", "List them with: ctrain images")


def require_trusted(image: Image, site: Site) -> None:
    """Raise ImageUnusable unless `image` is signed by a key that the site trusts and its digest is as published.

    Returns at once if the site requires no signatures. Raises SiteError if the site's keys cannot be read, EngineError
    if there is no engine to verify with.
    """
    if not site.require_signature:
        return
    keys = _trusted_keys(site)
    path, published = image.path, image.manifest.digest
    cache, conditions = UserCache(CACHE), _conditions(image, keys)
    if cache.get(str(path), conditions):
        return
    engine = find_engine()
    if path.is_dir():
        raise ImageUnusable(
            f"site {site.name} requires signatures, and sandbox {path} cannot have one", "Pack it as a .sif"
        )
    if not any(is_signed_by(image, key, engine) for key in keys):
        raise _untrusted(image, site, keys, engine)
    digest = _digest(path)
    if digest != published:
        problem = f"digest mismatch: {path} is {short(digest)}, its manifest records {short(published)}"
        raise ImageUnusable(problem, "It was modified after publishing; report it to the store's owner")
    cache.put(str(path), conditions, True)


def require_trusted_layer(layer: UserLayer, site: Site) -> None:
    """Raise ImageUnusable unless `layer`, whose bytes were read, is signed by a key that the site trusts, if it
    requires signatures; as `require_trusted` otherwise."""
    if not site.require_signature:
        return
    keys, signature = _trusted_keys(site), signatures.path_for_layer(layer.path)
    problem = f"is not signed by a key that site {site.name} trusts"
    if signature.exists():
        if not signatures.holds(signature, signatures.layer_statement(layer.digest)):
            problem = f"is not the one that {signature.name} was made for: it was built again, or changed"
        elif any(verifies(find_engine(), signature, key) for key in keys):
            return
    hint = f"Ask somebody who holds a trusted key to run: ctrain layer sign {layer.path} --key KEY"
    raise ImageUnusable(f"layer {layer.path} {problem}", hint)


def _trusted_keys(site: Site) -> list[str]:
    """Raises SiteError for a site without any, or with some that cannot be read."""
    if not site.trusted_keys:
        problem = f"site {site.name} requires signatures but has no trusted keys"
        raise SiteError(problem, "Set `trusted_keys` in the site file")
    try:
        return [check_key(key) for key in site.trusted_keys]
    except UsageError as error:
        raise SiteError(f"site {site.name}: trusted_keys: {error.message}", "Ask the administrators") from error


def check_key(key: str) -> str:
    """`key`, if it is a fingerprint or the path of an existing PEM file. Raises UsageError."""
    if not _FINGERPRINT.fullmatch(key) and not Path(key).is_file():
        raise UsageError(f"file {key} not found", "Name a public key or certificate in PEM, or a PGP fingerprint")
    return key


def is_signed_by(image: Image, key: str, engine: Engine) -> bool:
    """Whether a valid signature by `key` covers the image's name, version and digest; without a manifest, its file.

    `key` is the path of a public key or certificate in PEM, or a PGP fingerprint. The first kind of signature says
    nothing about the file until its digest is compared.
    """
    if _has_no_manifest(image):
        return verifies(engine, image.path, key)
    if image.manifest.file_name != image.path.name:
        return False
    added = (path for path in signatures.added(image.path) if signatures.covers(path, image.manifest))
    return any(verifies(engine, path, key) for path in added)


def verifies(engine: Engine, path: Path, key: str, key_ring: str = "") -> bool:
    """Whether a valid signature by `key` covers all objects of a file. `key_ring`: the directory with a PGP key, if it
    is not the one of the user or the machine."""
    try:
        if not signatures.is_whole(path):
            return False
    except ImageUnusable:
        return False
    verify, environ = [engine.path, "--quiet", "verify", "--all"], key_environ(key_ring)
    if _FINGERPRINT.fullmatch(key):
        argv = [*verify, "--local", "--json", str(path)]
        result = command.run(argv, env=environ, timeout=_READ_TIMEOUT_SECONDS, check=False)
        return result.code == 0 and key.upper() in _signers(result.stdout)
    kind = "certificate" if "BEGIN CERTIFICATE" in Path(key).read_text(errors="replace") else "key"
    options = [f"--{kind}", key, *(["--certificate-roots", key] if kind == "certificate" else [])]
    argv = [*verify, *options, str(path)]
    return command.run(argv, env=environ, timeout=_READ_TIMEOUT_SECONDS, check=False).code == 0


def key_environ(key_ring: str = "") -> dict[str, str]:
    """The environment of engines that sign and verify: of their settings, only where PGP keys are (or `key_ring`).

    Else APPTAINER_VERIFY_CERTIFICATE would take the place of the trusted key.
    """
    callers = {name: os.environ[name] for name in (*_KEY_RING, "APPTAINER_CONFIGDIR") if name in os.environ}
    return {**clean_environ(os.environ), **callers, **(dict.fromkeys(_KEY_RING, key_ring) if key_ring else {})}


def _has_no_manifest(image: Image) -> bool:
    """Whether an image is offered as nothing but its file: then a signature in the file covers all that it claims."""
    return not image.manifest.version and is_foreign(str(image.path))


def _untrusted(image: Image, site: Site, keys: Sequence[str], engine: Engine) -> ImageUnusable:
    """The error for an image that no trusted key has signed as it is offered: with what its publisher has to do."""
    path, problem = image.path, f"is not signed by a key that site {site.name} trusts"
    files = [key for key in keys if not _FINGERPRINT.fullmatch(key)]
    if files and not verifies_pem_keys(engine):
        what = f"image {path} cannot be verified: {engine.name} {engine.version} knows PGP keys alone, not {files[0]}"
        return ImageUnusable(what, "Ask the administrators to trust a PGP key, too, or for SingularityCE 3.11 or later")
    unknown = [key for key in keys if _is_absent(engine, key)]
    if unknown:
        what = (
            f"image {path} cannot be verified: PGP key {unknown[0]}, which site {site.name} trusts, is in no key ring"
        )
        return ImageUnusable(what, f"Import it with: {Path(engine.path).name} key import FILE")
    if _has_no_manifest(image):
        if any(entry.kind == sif.SIGNATURE for entry in sif.read(path).entries):
            is_whole = signatures.is_whole(path)
            why = (
                "another key has signed it, or it was changed since"
                if is_whole
                else "its signatures are not of all its objects"
            )
            problem = f"{problem}: {why}"
        return ImageUnusable(f"image {path} {problem}", f"Ask its publisher to run: apptainer sign {path}")
    added = signatures.added(path)
    if added and not any(signatures.covers(one, image.manifest) for one in added):
        problem = "has signatures, but of another digest, name or version"
        hint = "It was changed after it was signed; report it to the store's owner"
        return ImageUnusable(f"image {path} {problem}", hint)
    if any(verifies(engine, path, key) for key in keys):
        problem = "has a trusted signature in its file, but none on its name and version"
    hint = f"Ask its publisher to run: ctrain store sign {image.manifest.reference} --key KEY"
    return ImageUnusable(f"image {path} {problem}", hint)


def _is_absent(engine: Engine, key: str) -> bool:
    """Whether a PGP key is certainly in no key ring that the engine verifies with: then no signature by it is valid."""
    if not _FINGERPRINT.fullmatch(key):
        return False
    argv = [[engine.path, "key", "list", *ring] for ring in ((), ("--global",))]
    listed = "".join(command.run(one, env=key_environ(), check=False).stdout for one in argv)
    return "Public key listing" in listed and key.upper() not in listed.upper()


def _signers(output: str) -> set[str]:
    """The fingerprints of all valid signatures in the output of `verify --json`."""
    try:
        signers = [entry["Signer"] for entry in json.loads(output)["SignerKeys"]]
        return {str(signer["Fingerprint"]).upper() for signer in signers if signer["DataCheck"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise CtrainError(f"cannot read {path}: {error.strerror}") from error


def _conditions(image: Image, keys: Sequence[str]) -> list[object]:
    """Identifies the file, what it is offered as, the machine and the keys: a verification is valid as long as this is
    unchanged."""
    contents = [key if _FINGERPRINT.fullmatch(key) else Path(key).read_text(errors="replace") for key in keys]
    trusted = hashlib.sha256("\0".join(contents).encode(errors="replace")).hexdigest()
    claims = [image.manifest.file_name, image.manifest.digest] if image.manifest.version else []
    return [_RULES, *file_conditions(image.path), *claims, trusted]

"""Verifies an image before a run: its signature, and its digest against the manifest.

Both checks read the whole file (the first one only for a signature in it), which takes seconds per 10 GB. The result is
cached per machine and user, keyed by the file's inode, size and timestamps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from ctrain_runtime import command, signatures
from ctrain_runtime.digest import file_digest, short
from ctrain_runtime.engines.apptainer import Engine, find_engine
from ctrain_runtime.errors import CtrainError, ImageUnusable, SiteError, UsageError
from ctrain_runtime.image import Image, is_foreign, is_path
from ctrain_runtime.site import SelectedSite, Site
from ctrain_runtime.user_cache import UserCache, file_conditions

CACHE = "verified"
_FINGERPRINT = re.compile(r"[0-9A-F]{40}", re.IGNORECASE)  # of a PGP key
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
    if not site.trusted_keys:
        problem = f"site {site.name} requires signatures but has no trusted keys"
        raise SiteError(problem, "Set `trusted_keys` in the site file")
    try:
        keys = [check_key(key) for key in site.trusted_keys]
    except UsageError as error:
        raise SiteError(f"site {site.name}: trusted_keys: {error.message}", "Ask the administrators") from error
    path, published = image.path, image.manifest.digest
    cache, conditions = UserCache(CACHE), _conditions(path, keys)
    if cache.get(str(path), conditions):
        return
    engine = find_engine()
    if path.is_dir():
        raise ImageUnusable(
            f"site {site.name} requires signatures, and sandbox {path} cannot have one", "Pack it as a .sif"
        )
    if not any(is_signed_by(image, key, engine) for key in keys):
        store_sign = f"ctrain store sign {image.manifest.reference} --key KEY"
        hint = f"Ask its publisher to run: {f'apptainer sign {path}' if image.foreign else store_sign}"
        raise ImageUnusable(f"image {path} is not signed by a key that site {site.name} trusts", hint)
    digest = _digest(path)
    if digest != published:
        problem = f"digest mismatch: {path} is {short(digest)}, its manifest records {short(published)}"
        raise ImageUnusable(problem, "It was modified after publishing; report it to the store's owner")
    cache.put(str(path), conditions, True)


def check_key(key: str) -> str:
    """`key`, if it is a fingerprint or the path of an existing PEM file. Raises UsageError."""
    if not _FINGERPRINT.fullmatch(key) and not Path(key).is_file():
        raise UsageError(f"file {key} not found", "Name a public key or certificate in PEM, or a PGP fingerprint")
    return key


def is_signed_by(image: Image, key: str, engine: Engine) -> bool:
    """Whether a valid signature by `key` covers the image's file, or its name and digest in the manifest.

    `key` is the path of a public key or certificate in PEM, or a PGP fingerprint. The second kind of signature was
    added after publishing: it says nothing about the file until its digest is compared.
    """
    added = [path for path in signatures.added(image.path) if signatures.covers(path, image.manifest)]
    return any(_verifies(engine, path, key) for path in (*added, image.path))


def _verifies(engine: Engine, image: Path, key: str) -> bool:
    """Whether all objects of an image have a valid signature by `key`."""
    verify = [engine.path, "--quiet", "verify", "--all"]
    if _FINGERPRINT.fullmatch(key):
        result = command.run([*verify, "--local", "--json", str(image)], timeout=_READ_TIMEOUT_SECONDS, check=False)
        return result.code == 0 and key.upper() in _signers(result.stdout)
    kind = "certificate" if "BEGIN CERTIFICATE" in Path(key).read_text(errors="replace") else "key"
    options = [f"--{kind}", key, *(["--certificate-roots", key] if kind == "certificate" else [])]
    return command.run([*verify, *options, str(image)], timeout=_READ_TIMEOUT_SECONDS, check=False).code == 0


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


def _conditions(path: Path, keys: Sequence[str]) -> list[object]:
    """Identifies the file, the machine and the keys: a verification is valid as long as this is unchanged."""
    contents = [key if _FINGERPRINT.fullmatch(key) else Path(key).read_text(errors="replace") for key in keys]
    trusted = hashlib.sha256("\0".join(contents).encode(errors="replace")).hexdigest()
    return [*file_conditions(path), trusted]

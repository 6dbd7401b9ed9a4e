"""Whether an image may run here: whose signature it bears, and whether it is still what was published.

Both are found by reading all of it, which takes seconds for each 10 GB. So what was found is kept for this machine and
user, by the file's inode, size and times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from ctrain_runtime import command
from ctrain_runtime.engines.apptainer import Engine, find_engine
from ctrain_runtime.errors import CtrainError, ImageUnusable, SiteError
from ctrain_runtime.image import Image
from ctrain_runtime.site import Site

_FINGERPRINT = re.compile(r"[0-9A-F]{40}", re.IGNORECASE)  # of a PGP key
_READ_TIMEOUT_SECONDS = 3600  # seconds for reading an image
_CHUNK_BYTES = 1 << 22


def require_trusted(image: Image, site: Site) -> None:
    """Raise ImageUnusable unless a key that the site trusts has signed `image`, and its bytes are those published.

    Does nothing for a site that requires no signatures. Raises SiteError when the site's keys can't be read, and
    EngineError without the engine, which verifies.
    """
    if not site.require_signature:
        return
    if not site.trusted_keys:
        raise SiteError(f"site {site.name} requires signatures and trusts no key", "Set trusted_keys in its file")
    keys = [_key(key, site) for key in site.trusted_keys]
    for path, _, digest in image.sif_files:
        _require_file(path, digest, keys, site)


def _require_file(path: Path, published: str, keys: Sequence[str], site: Site) -> None:
    known, about = _VerificationCache(), _cache_key(path, keys)
    if known.has(path, about):
        return
    engine = find_engine()
    if not any(_verifies(engine, path, key) for key in keys):
        hint = "Ask who published it to sign it: ctrain publish --sign KEY"
        raise ImageUnusable(f"image {path} has no valid signature of a key that site {site.name} trusts", hint)
    digest = _digest(path)
    if digest != published:
        what = f"image {path} has the digest {digest[:19]}, its manifest says {published[:19]}"
        raise ImageUnusable(what, "It was changed since it was published: tell the keepers of the store")
    known.add(path, about)


def _key(key: str, site: Site) -> str:
    """A fingerprint, or the path of a PEM file that is there."""
    if not _FINGERPRINT.fullmatch(key) and not Path(key).is_file():
        raise SiteError(f"site {site.name}: trusted_keys: there is no file {key}", "Ask the admins of this machine")
    return key


def _verifies(engine: Engine, image: Path, key: str) -> bool:
    """Whether all objects of an image bear a valid signature by a key."""
    verify = [engine.path, "--quiet", "verify", "--all"]
    if _FINGERPRINT.fullmatch(key):
        said = command.run([*verify, "--local", "--json", str(image)], timeout=_READ_TIMEOUT_SECONDS, check=False)
        return said.code == 0 and key.upper() in _signers(said.stdout)
    kind = "certificate" if "BEGIN CERTIFICATE" in Path(key).read_text(errors="replace") else "key"
    options = [f"--{kind}", key, *(["--certificate-roots", key] if kind == "certificate" else [])]
    return command.run([*verify, *options, str(image)], timeout=_READ_TIMEOUT_SECONDS, check=False).code == 0


def _signers(said: str) -> set[str]:
    """The fingerprints of all good signatures in what `verify --json` says."""
    try:
        signers = [entry["Signer"] for entry in json.loads(said)["SignerKeys"]]
        return {str(signer["Fingerprint"]).upper() for signer in signers if signer["DataCheck"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _digest(path: Path) -> str:
    sha = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                sha.update(chunk)
    except OSError as error:
        raise CtrainError(f"{path} can't be read: {error.strerror}") from error
    return f"sha256:{sha.hexdigest()}"


def _cache_key(path: Path, keys: Sequence[str]) -> list[object]:
    """What must be the same for a file to be what was verified: itself, the machine, and the keys."""
    found = path.stat()
    contents = [key if _FINGERPRINT.fullmatch(key) else Path(key).read_text(errors="replace") for key in keys]
    trusted = hashlib.sha256("\0".join(contents).encode(errors="replace")).hexdigest()
    times = [found.st_mtime_ns, found.st_ctime_ns]
    return [socket.gethostname(), found.st_dev, found.st_ino, found.st_size, *times, trusted]


class _VerificationCache:
    """$XDG_CACHE_HOME/ctrain/verified.json: path of an image -> what it was when it was verified."""

    def __init__(self) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._path = home / "ctrain" / "verified.json"
        self._images: dict[str, list[object]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._images = dict(json.loads(self._path.read_text(encoding="utf-8")))

    def has(self, image: Path, about: list[object]) -> bool:
        return self._images.get(str(image)) == about

    def add(self, image: Path, about: list[object]) -> None:
        self._images[str(image)] = about
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # a home that can't be written only means reading again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(self._images), encoding="utf-8")
            new.replace(self._path)

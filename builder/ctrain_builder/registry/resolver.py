"""What upstream images are now, by digest, with a memory: a registry that can't be reached stops no build.

CACHE/upstream.json   {reference: {"digest": "sha256:...", "seen": when the registry last said so}}
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic, manifest_writer
from ctrain_runtime.errors import RegistryError
from ctrain_runtime.images import remote
from ctrain_runtime.registry.client import RegistryClient, parse
from ctrain_runtime.registry.http_client import Unreachable

FILE = "upstream.json"


@dataclass(frozen=True)
class CachedDigest:
    """A digest, and when the registry last said so (ISO 8601, UTC)."""

    digest: str
    seen: str


class DigestResolver:
    """Asks registries for digests, once each, and remembers them in the directory `root` of a cache.

    `troubles` tells, for each host that could not be reached, why. Such a host is not asked again.
    """

    def __init__(self, root: Path, offline: bool = False, registry: Optional[RegistryClient] = None) -> None:
        self._path = root / FILE
        self._offline = offline
        self._registry = registry or RegistryClient()
        self._known: dict[str, str] = {}
        self.troubles: dict[str, Unreachable] = {}

    def resolve(self, reference: str) -> str:
        """The digest of `reference` (HOST/NAME:TAG, oras://... or library://...) now; without its registry, the one
        remembered. Raises RegistryError."""
        if reference not in self._known:
            self._known[reference] = self._now(reference) or self._before(reference)
        return self._known[reference]

    def remembered(self, reference: str) -> Optional[CachedDigest]:
        """What the last builder that asked for `reference` was told."""
        return self._read().get(_normal(reference))

    def _now(self, reference: str) -> str:
        """The digest that the registry tells, now remembered; "" when it can't be asked."""
        host = _host(reference)
        if self._offline or host in self.troubles:
            return ""
        try:
            digest = _of_file(reference) if _is_file(reference) else self._registry.digest(reference)
        except Unreachable as error:
            self.troubles[host] = error
            return ""
        self._remember(reference, digest)
        return digest

    def _before(self, reference: str) -> str:
        before = self.remembered(reference)
        if before:
            return before.digest
        if trouble := self.troubles.get(_host(reference)):
            raise trouble
        raise RegistryError(f"the digest of {reference} is not known here yet", "Run once without --offline")

    def _remember(self, reference: str, digest: str) -> None:
        with self._path.with_suffix(".lock").open("w") as lock:  # two builders: neither forgets what the other learns
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = {**self._read(), _normal(reference): CachedDigest(digest, manifest_writer.utc_now())}
            data = {name: asdict(seen) for name, seen in sorted(known.items())}
            atomic.write_text(self._path, json.dumps(data, indent=2) + "\n")

    def _read(self) -> dict[str, CachedDigest]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            return {name: CachedDigest(**seen) for name, seen in data.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise RegistryError(
                f"{self._path} is damaged: {error}", "Delete it: the digests are requested again"
            ) from error


def _is_file(reference: str) -> bool:
    """Whether a reference is to a SIF file: its digest is that of the file."""
    return reference.startswith(("oras://", "library://"))


def _of_file(reference: str) -> str:
    return remote.resolve(reference).digest


def _host(reference: str) -> str:
    return reference.split("/")[2] if _is_file(reference) else parse(reference).host


def _normal(reference: str) -> str:
    return reference if _is_file(reference) else str(parse(reference))

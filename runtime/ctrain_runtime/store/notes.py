"""What was noted of a version after it was published: its manifest never changes.

STORE/scans/STEM.json         what a scanner made of its package list
STORE/deprecated/STEM.json    until when it may be used, and what to use instead
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, TypeVar, Union

from ctrain_runtime.base import config
from ctrain_runtime.base.text import one_line
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.manifest import Manifest

SCANS, DEPRECATED = "scans", "deprecated"
CLEAN, FINDINGS, FAILED = "clean", "findings", "failed"
T = TypeVar("T")


@dataclass(frozen=True)
class Scan:
    """What a scanner made of the packages of the file with this digest. `verdict`: clean, findings or failed (it did
    not come to an end); `code`: its exit code; `output`: its last lines."""

    digest: str
    verdict: str
    when: str
    code: int
    scanner: tuple[str, ...]
    output: tuple[str, ...] = ()

    def __str__(self) -> str:
        return one_line(
            f"{self.verdict} on {self.when[:10]} by {''.join(self.scanner[:1]) or '?'} (exit code {self.code})"
        )


@dataclass(frozen=True)
class Deprecation:
    """`until`: the last day on which the version is to be used, as in 2027-03-31; `use`: what instead, "" for none."""

    digest: str
    until: str
    reason: str
    use: str = ""

    @property
    def terms(self) -> str:
        instead = f"; use {self.use}" if self.use else ""
        return one_line(f"goes after {self.until}: {self.reason}{instead}")

    def __str__(self) -> str:
        return f"is deprecated and {self.terms}"


Note = Union[Scan, Deprecation]
KINDS: dict[str, type[Note]] = {SCANS: Scan, DEPRECATED: Deprecation}


def path_for(image: Path, directory: str) -> Path:
    """Where a note of an image lies."""
    return image.parent / directory / f"{image.stem}.json"


def read_scan(image: Path, manifest: Manifest) -> Optional[Scan]:
    """The last scan of a version; None if there is none of its file. Raises ConfigError."""
    return _of(read(Scan, path_for(image, SCANS)), manifest)


def read_deprecation(image: Path, manifest: Manifest) -> Optional[Deprecation]:
    """The deprecation of a version; None if it is not deprecated. Raises ConfigError."""
    return _of(read(Deprecation, path_for(image, DEPRECATED)), manifest)


def read(kind: type[T], path: Path) -> Optional[T]:
    """A note; None if there is none. Raises ConfigError for one that cannot be read."""
    try:
        return parse(kind, path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "Remove it") from error


def parse(kind: type[T], text: bytes, source: str) -> T:
    """The note in `text`; `source` is named in errors. Raises ConfigError."""
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {source}: {error}", "Remove it") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{source} is damaged: not a JSON object", "Remove it")
    return config.load(kind, data, source)


def _of(note: Optional[T], manifest: Manifest) -> Optional[T]:
    """The note, if it is of this file: not of another one that had the name in another store."""
    return note if note is not None and getattr(note, "digest", "") == manifest.digest else None

"""images.lock beside images.yaml: what images had when they were built, so that they can be built so again.

What can be imposed on a build is part of the keys of its layers: the versions of Python packages, as constraints of
pip, and the date of the Debian mirror, if that is a snapshot. The rest (Debian's versions, the digest of each layer)
tells whether the result is the same. `ctrain upstream --lock` writes it; what it does not name is built as ever.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from ctrain_builder.files import atomic
from ctrain_runtime.base import config
from ctrain_runtime.errors import BuildError, ConfigError

FILE = "images.lock"
CONSTRAINTS = "constraints.txt"
SCHEMA = 1
_SNAPSHOT = re.compile(r"(?<=/)(\d{8}T\d{6}Z)(?=/?$)")  # the end of a snapshot's URL
_PIN = re.compile(r"[a-z0-9][a-z0-9._-]*==[A-Za-z0-9.+!_-]+")
_SHOWN = 6


@dataclass(frozen=True)
class LockedLayer:
    """What a layer adds or changes: packages with their versions. `digest`: of its partition, which holds its `key`."""

    digest: str
    key: str = ""
    pypi: dict[str, str] = field(default_factory=dict)
    deb: dict[str, str] = field(default_factory=dict)

    @property
    def constraints(self) -> str:
        """The text of a constraint file of pip; "" for a layer without Python packages."""
        return "".join(f"{name}=={version}\n" for name, version in sorted(self.pypi.items()))

    def differences(self, pypi: Mapping[str, str], deb: Mapping[str, str]) -> str:
        """What else than the locked versions an image has, in words; "" for nothing."""
        changes = [*_differences(self.pypi, pypi), *_differences(self.deb, deb)]
        more = f"; and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        return "; ".join(changes[:_SHOWN]) + more


@dataclass(frozen=True)
class LockedImage:
    """`snapshot`: the date of the Debian mirror, as in 20261128T000000Z; "" if it was no snapshot. `layers`: by
    definition."""

    snapshot: str = ""
    layers: dict[str, LockedLayer] = field(default_factory=dict)

    def key(self, name: str, *, from_mirror: bool) -> str:
        """What of it makes the layer of a definition; "" for nothing."""
        layer = self.layers.get(name)
        imposed = [self.snapshot if from_mirror else "", layer.constraints if layer else ""]
        return hashlib.sha256(json.dumps(imposed).encode()).hexdigest() if any(imposed) else ""


@dataclass(frozen=True)
class LockFile:
    """`images`: by NAME:TAG, then by architecture."""

    schema: int = SCHEMA
    images: dict[str, dict[str, LockedImage]] = field(default_factory=dict)

    def with_image(self, title: str, arch: str, image: LockedImage) -> LockFile:
        known = {**self.images, title: {**self.images.get(title, {}), arch: image}}
        return replace(self, images=dict(sorted(known.items())))


def read(directory: Path) -> LockFile:
    """The lock file of a directory of definitions; an empty one if there is none. Raises ConfigError."""
    path = directory / FILE
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return LockFile()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}", _RENEW) from error
    if not isinstance(data, dict) or type(data.get("schema")) is not int:
        raise ConfigError(f"{path} is damaged: it has no schema", _RENEW)
    if data["schema"] > SCHEMA:
        raise ConfigError(f"unsupported schema {data['schema']} in {path} (supported: {SCHEMA})", "Upgrade ctrain")
    lock = config.load(LockFile, data, str(path))
    for title, image in ((title, image) for title, arches in lock.images.items() for image in arches.values()):
        _check(f"{path}: {title}", image)
    return lock


_RENEW = "Restore it from git, or write it again: ctrain upstream --lock IMAGE"


def write(directory: Path, lock: LockFile) -> Path:
    """Write the lock file; its path."""
    path = directory / FILE
    try:
        atomic.write_text(path, json.dumps(asdict(lock), indent=1) + "\n", 0o644)
    except OSError as error:
        hint = "Lock images of your own definitions: --definitions DIR"
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint) from error
    return path


def snapshot_of(mirror: str) -> str:
    """The date of a mirror that is a snapshot of Debian's; "" for any other."""
    match = _SNAPSHOT.search(mirror)
    return match[1] if match else ""


def at_snapshot(mirror: str, snapshot: str) -> str:
    """The mirror as it was on a date. Raises BuildError for one that is no snapshot."""
    if not snapshot_of(mirror):
        what = f"{FILE} wants the Debian mirror of {snapshot}, and {mirror or 'none'} is no snapshot"
        raise BuildError(what, f"Pass --build-arg MIRROR=URL/archive/debian/{snapshot}, or renew the lock")
    return _SNAPSHOT.sub(snapshot, mirror)


def added(below: Mapping[str, str], with_layer: Mapping[str, str]) -> dict[str, str]:
    """The packages that a layer adds or changes."""
    return {name: version for name, version in sorted(with_layer.items()) if below.get(name) != version}


def _check(where: str, image: LockedImage) -> None:
    """Raise ConfigError for what must not get into a file of pip, or into a URL."""
    if image.snapshot and not re.fullmatch(r"\d{8}T\d{6}Z", image.snapshot):
        raise ConfigError(f"{where}: snapshot {image.snapshot!r} is no date such as 20261128T000000Z", _RENEW)
    for name, layer in image.layers.items():
        for line in layer.constraints.splitlines():
            if not _PIN.fullmatch(line):
                raise ConfigError(f"{where}: {name}: {line!r} is no version of a package", _RENEW)


def _differences(locked: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[str]:
    for name, version in locked.items():
        if actual.get(name) != version:
            yield f"{name} {version} -> {actual.get(name) or '(none)'}"


def locked_layer(image: Optional[LockedImage], name: str) -> Optional[LockedLayer]:
    return image.layers.get(name) if image else None

"""All versions that a store has manifests of: published, retired, withdrawn and quarantined ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import UsageError
from ctrain_runtime.store.manifest import version_of
from ctrain_runtime.store.store import QUARANTINE, RETIRED, WITHDRAWN, Store, is_gone, list_directory

PUBLISHED, REMOVED, WAS_WITHDRAWN, QUARANTINED = "published", "removed", "withdrawn", "quarantined"
_DIRECTORIES = (".", RETIRED, QUARANTINE)


@dataclass(frozen=True)
class StoredVersion:
    """The manifest's file and the image's; that of a version that is not published may have been removed."""

    manifest: Path
    image: Path

    @property
    def name(self) -> str:
        return self.image.stem.partition("_")[0]

    @property
    def version(self) -> str:
        return version_of(self.image.stem)

    @property
    def reference(self) -> str:
        return f"{self.name}:{self.version}"

    @property
    def is_retired(self) -> bool:
        return self.manifest.parent.name == RETIRED

    @property
    def state(self) -> str:
        directories = (self.manifest.parent.name, self.image.parent.name)
        if not {RETIRED, QUARANTINE} & set(directories):
            return PUBLISHED
        if is_gone(self.image):
            return REMOVED
        if QUARANTINE in directories:
            return QUARANTINED
        return RETIRED if is_gone(self.image.with_suffix(WITHDRAWN)) else WAS_WITHDRAWN


def is_withdrawn(store: Store, version: StoredVersion) -> bool:
    """Whether users are told why a version is not offered; whatever has become of its file."""
    return not is_gone(store.root / f"{version.image.stem}{WITHDRAWN}")


def stored_versions(store: Store, directories: Sequence[str] = _DIRECTORIES) -> list[StoredVersion]:
    """The versions whose manifests are in these directories of a store, each once: a crash may have left two."""
    manifests: dict[str, Path] = {}
    for directory in directories:
        for path in list_directory(store.root / directory, "*_*.json"):
            manifests.setdefault(path.stem, path)
    return [StoredVersion(path, _image(store.root, stem)) for stem, path in manifests.items()]


def _image(root: Path, stem: str) -> Path:
    image, quarantined = root / f"{stem}.sif", root / QUARANTINE / f"{stem}.sif"
    return quarantined if is_gone(image) and not is_gone(quarantined) else image


FileIdentity = tuple[int, ...]  # device, inode, size and time; empty for a file that cannot be looked at


def identify(version: StoredVersion) -> tuple[FileIdentity, FileIdentity]:
    """Which files a version has now: its manifest's and its image's. Other ones are another state."""
    manifest, image = (_identity(path) for path in (version.manifest, version.image))
    return manifest, image


def _identity(path: Path) -> FileIdentity:
    try:
        status = path.lstat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def file_size(path: Path) -> int:
    """In bytes; 0 for a file that is gone, or cannot be read, which its check reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def check_names(store: Store, names: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError for a name of no image."""
    for name in sorted({*names} - {*known}):
        hint = f"{suggest(name, known)} Available: {', '.join(sorted(known)) or 'none'}".strip()
        raise UsageError(f"store {store.root} has no image {name!r}", hint)

"""What becomes of published versions: retired, withdrawn, removed; and of what crashes have left.

A retired version is no longer offered, but its file stays where it is for a grace period: jobs that run or wait may
use it by its path. `collect` then removes the file. The manifest is kept in STORE/retired for ever: it tells what an
old run had, and its number is not given again. A withdrawn version is a retired one that may have been in channels:
these now point to the file that tells users why.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic
from ctrain_builder.files.manifest_writer import utc
from ctrain_builder.store import channels, log
from ctrain_builder.store.copy import PART, copier, discard
from ctrain_builder.store.inventory import StoredVersion, check_names, stored_versions
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.errors import ConfigError, StoreError
from ctrain_runtime.store import lease
from ctrain_runtime.store.lease import Lease
from ctrain_runtime.store.manifest import Manifest, read_manifest
from ctrain_runtime.store.references import resolve
from ctrain_runtime.store.store import (
    CHANNELS,
    QUARANTINE,
    RETIRED,
    WITHDRAWN,
    PublishedImage,
    Store,
    channel_target,
    is_gone,
    list_directory,
    pending_manifest,
)

GRACE_DAYS = 30.0  # days
_DAY = 86400
# Of copies, small files and locks; and links in channels/, as earlier ctrains named them
_OWN_PART = re.compile(r"\..+\.(sif|json|html|lock)(\.\w+)?\.part(\.lock)?|\.[a-z0-9-]+_[^_]+\.sif\.\d+")


@dataclass(frozen=True)
class Removal:
    """A file that may go. `size` is in bytes; `version` is the one that it is, if any."""

    path: Path
    size: int
    why: str
    version: Optional[StoredVersion] = None


def named_versions(store: Store, references: Sequence[str]) -> list[PublishedImage]:
    """The versions NAME:VERSION. Raises ImageNotFound; StoreError for the name of a channel, which may move."""
    images = [resolve([store], reference) for reference in references]
    for reference, image in zip(references, images):
        if image.manifest.version not in reference and image.manifest.digest not in reference:
            hint = f"It currently resolves to {image.manifest.reference}"
            raise StoreError(f"{reference!r} is not NAME:VERSION", hint)
    return images


def retirable(store: Store, references: Sequence[str], keep: Optional[int] = None) -> list[PublishedImage]:
    """The versions (NAME:VERSION) that are to be retired; with `keep`, the surplus of the images of these names. Raises
    ImageNotFound, UsageError, and StoreError for one in a channel."""
    if keep is not None:
        check_names(store, references, {image.manifest.name for image in store.images()})
        return surplus(store, references, keep, time.time())
    images = named_versions(store, references)
    for image in images:
        if image.channels:
            hint = f"First: ctrain store promote {image.manifest.name} VERSION {image.channels[0]}"
            what = f"channel {', '.join(image.channels)} points to {image.manifest.name} {image.manifest.version}"
            raise StoreError(what, hint)
    return images


def surplus(store: Store, names: Sequence[str], keep: int, now: float) -> list[PublishedImage]:
    """The versions of images (of all without `names`) besides the newest `keep` of each tag and stack; flat ones count
    apart.

    Without those that a channel or, at time `now`, a job needs.
    """
    leased = lease.active(store.root, now)
    images = [image for image in store.images() if not names or image.manifest.name in names]
    return [image for image in older(images, keep) if not image.channels and image.path.name not in leased]


def older(images: Iterable[PublishedImage], newest: int) -> list[PublishedImage]:
    """All but the newest of each name, tag and stack; flat ones count apart. `images`: the oldest first."""
    lines: dict[tuple[str, str, str, bool], list[PublishedImage]] = {}
    for image in images:
        one = image.manifest
        lines.setdefault((one.name, one.tag, one.stack, one.flat), []).append(image)
    return [image for line in lines.values() for image in line[: max(0, len(line) - newest)]]


def retire(
    writer: LockedStore, references: Sequence[str], why: str = "", keep: Optional[int] = None
) -> list[PublishedImage]:
    """Take what is `retirable` out of the store's list."""
    images = retirable(writer.store, references, keep)
    for image in images:
        writer.log(log.RETIRE, image.manifest.name, image.manifest.version, digest=image.manifest.digest, why=why)
        retire_image(writer, image)
    return images


def withdrawable(store: Store, references: Sequence[str]) -> list[PublishedImage]:
    """The versions NAME:VERSION, published or retired. Raises as `named_versions`."""
    known = {version.reference: version for version, _ in retired(store)}
    images: list[PublishedImage] = []
    for reference in references:
        version = known.get(reference)
        if version:
            image = store.root / version.image.name
            images.append(PublishedImage(read_manifest(version.manifest), image, tuple(pointing(store, image.name))))
        else:
            images += named_versions(store, [reference])
    return images


def withdraw(writer: LockedStore, references: Sequence[str], why: str) -> list[PublishedImage]:
    """Take versions out of the store's list and out of their channels, which then tell `why`."""
    images = withdrawable(writer.store, references)
    for image in images:
        manifest = image.manifest
        writer.log(log.WITHDRAW, manifest.name, manifest.version, digest=manifest.digest, why=why)
        take_out(writer, image, why)
    return images


def relatives(store: Store, manifests: Sequence[Manifest]) -> tuple[str, ...]:
    """The published versions, besides those of the `manifests`, that have the topmost layer of one of them, and with it
    what leaks in it."""
    tops = {manifest.layers[-1].digest for manifest in manifests if manifest.layers} - {""}
    own = {manifest.file_name for manifest in manifests}
    others = (one.manifest for one in store.images() if one.manifest.file_name not in own)
    return tuple(one.reference for one in others if tops & {layer.digest for layer in one.layers})


def take_out(writer: LockedStore, image: PublishedImage, why: str) -> None:
    """Make the channels of a version tell `why` it is withdrawn, and retire it unless it is retired already."""
    note = image.path.with_suffix(WITHDRAWN)
    writer.write(note, f"{why}\n")
    for channel in image.channels:
        channels.relink(writer, image.manifest.name, channel, note.name)
    retire_image(writer, image)


def pointing(store: Store, file_name: str) -> list[str]:
    """The channels whose links lead to the file of an image, published or not."""
    name = file_name.partition("_")[0]
    return [channel for channel, target in channels.links(store.root, name).items() if target == file_name]


def needed_by(store: Store, file_name: str) -> tuple[str, ...]:
    """Who needs the file of an image, published or not, as in "channel prod"."""
    jobs = lease.of_image(store.root / file_name, time.time())
    return (*(f"channel {channel}" for channel in pointing(store, file_name)), *map(str, jobs))


def retire_image(writer: LockedStore, image: PublishedImage) -> None:
    """Take the manifest of a version to the retired ones, unless it is no longer published."""
    path = image.path.with_suffix(".json")
    if is_gone(path):
        return
    retired_path = writer.directory(RETIRED) / path.name
    writer.write(retired_path, path.read_text(encoding="utf-8"))  # a new file: its time is that of the retirement
    path.unlink()
    atomic.sync_directory(writer.root)


def retired(store: Store) -> Iterator[tuple[StoredVersion, float]]:
    """Every retired version, the removed ones too, and when it was retired (seconds since 1970). What a crash has left
    of a retirement or a return does not count."""
    for version in stored_versions(store, (".", RETIRED)):
        if version.is_retired:
            with contextlib.suppress(ConfigError, FileNotFoundError):  # `verify` and `doctor` tell
                if read_manifest(version.manifest).file_name == version.image.name:
                    yield version, version.manifest.stat().st_mtime


def leases_on_retired(store: Store, now: float) -> list[Lease]:
    """The leases on retired versions.

    They count for at most LONGEST_DAYS after the retirement, because anybody can make a lease that never expires.
    """
    leases = lease.active(store.root, now)
    ends = {version.image.name: since + lease.LONGEST_DAYS * _DAY for version, since in retired(store)}
    bounded = (
        replace(leases[name], until=min(leases[name].until, end)) for name, end in ends.items() if name in leases
    )
    return [one for one in bounded if one.until > now]


def garbage(store: Store, grace: float, now: float, quarantined: bool = False) -> Iterator[Removal]:
    """What can be removed: versions that were retired `grace` days ago and no job needs, and what crashes have left;
    the images in quarantine, too, if `quarantined`. Their manifests stay, so that no number is given again.

    Only what is certainly ctrain's own, or empty: an image whose manifest can be read in retired/ or still has its
    pending name, and temporary files. An image with any other manifest, readable or not, or with none, stays.
    """
    links = list_directory(store.root / CHANNELS, "*.sif")
    keeping = {*map(channel_target, links), *(one.image for one in leases_on_retired(store, now))}
    for version, since in retired(store):
        days, image = (now - since) / _DAY, store.root / version.image.name
        if image.is_file() and image.name not in keeping and days >= grace:
            yield Removal(image, image.stat().st_size, f"retired {utc(since)[:10]}", version)
    manifests = {version.manifest.stem for version in stored_versions(store)}
    for path in list_directory(store.root / QUARANTINE, "*_*.sif") if quarantined else ():
        if path.stem in manifests:  # also of a version that is published again
            yield Removal(path, path.lstat().st_size, "quarantined", StoredVersion(path.with_suffix(".json"), path))
    for path in list_directory(store.root, "*_*.sif"):
        if path.stem not in manifests and _is_unfinished(path):
            yield Removal(path, path.stat().st_size, "left by an interrupted publish")
    for path in sorted((*store.root.glob(".*.part*"), *(store.root / CHANNELS).glob(".*"))):
        if _OWN_PART.fullmatch(path.name) and not path.is_dir() and not copier(path):
            with contextlib.suppress(FileNotFoundError):  # its command has just ended
                yield Removal(path, path.lstat().st_size, "left by an interrupted command")


def _is_unfinished(image: Path) -> bool:
    """Whether the publish of an image without a manifest was interrupted."""
    return image.is_file() and (pending_manifest(image).exists() or not image.lstat().st_size)


def copies(store: Store) -> list[tuple[Path, str]]:
    """The copies in progress, which `gc` keeps, and who may be writing them."""
    parts = ((path, copier(path)) for path in sorted(store.root.glob(f".*{PART}")))
    return [(path, who) for path, who in parts if who]


def collect(writer: LockedStore, grace: float, quarantined: bool = False) -> list[Removal]:
    """Remove what `garbage` finds. Of commands that run, only copies are there, which their locks keep."""
    now = time.time()
    lease.sweep(writer.root, now)
    removals = list(garbage(writer.store, grace, now, quarantined))
    for one in removals:
        if one.version:
            writer.log(log.REMOVE, one.version.name, one.version.version, why=one.why)
        if one.path.name.startswith("."):
            discard(one.path)
        else:
            one.path.unlink(missing_ok=True)
    for directory in {writer.root, *(one.path.parent for one in removals)}:
        atomic.sync_directory(directory)
    return removals

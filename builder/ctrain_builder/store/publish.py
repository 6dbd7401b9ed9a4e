"""Puts an image into a store. The format and the read side are in ctrain_runtime.store.

The order makes every crash harmless: copy under a temporary name, compare the digest, make it durable; then, under
the store's lock, give it its name, then the manifest (from here on the image counts), then the channel. What a crash
leaves are names that start with a dot, and a .sif that is empty, or whose manifest still has its pending name.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic, manifest_writer
from ctrain_builder.files.digests import REGIONS, NotAsBuilt
from ctrain_builder.store import channels, log, scan, signatures
from ctrain_builder.store.copy import copy, shared, temporary
from ctrain_builder.store.inventory import REMOVED, is_withdrawn, stored_versions
from ctrain_builder.store.refresh import change
from ctrain_builder.store.sign import Signer
from ctrain_builder.store.writer import LockedStore, Permissions, translate_os_errors
from ctrain_runtime.base.digest import file_digest, kind, matches
from ctrain_runtime.errors import GateNotPassed, ImageTestError, ImageUnusable, StoreError, UsageError
from ctrain_runtime.store import policy
from ctrain_runtime.store import signatures as signed
from ctrain_runtime.store.manifest import Manifest, read_manifest
from ctrain_runtime.store.notes import Scan
from ctrain_runtime.store.store import (
    QUARANTINE,
    RETIRED,
    PublishedImage,
    Store,
    list_directory,
    open_store,
    pending_manifest,
)


@dataclass(frozen=True)
class PublishResult:
    """`new_version`: False when the store had the same digest already."""

    image: PublishedImage
    new_version: bool


@dataclass(frozen=True)
class CopyObserver:
    """Whom to tell of a copy: what a person should know, and how many bytes are done."""

    say: Callable[[str], None]
    done: Callable[[int], None]


def publish(
    image: Path,
    manifest: Manifest,
    root: Path,
    channel: str = "",
    watch: CopyObserver = CopyObserver(lambda _: None, lambda _: None),
    signer: Optional[Signer] = None,
    digest: str = "",
) -> PublishResult:
    """Copy a tested image into the store at `root` under its next release number; move `channel` to it if given.

    `digest`, if given, must be that of its manifest or, before it is signed, of its file; or the beginning of either.
    Raises ImageTestError, NotAsBuilt, StoreError, DiskFullError, UsageError.
    """
    if channel:
        channels.check(channel)
        policy.load(root)
    if signer:
        signer.check()
    if not manifest.tested:
        raise ImageTestError(f"image {image} has not passed its tests", "Build it again with: ctrain build")
    wanted = replace(manifest, signed=signer is not None)
    require_not_withdrawn(open_store(root), wanted)
    with translate_os_errors(root), contextlib.ExitStack() as copies:
        known = find_same(open_store(root), wanted, signer)
        if known or kind(digest) == kind(manifest.digest):
            require_digest(image, manifest, digest)
        copied = None if known else copies.enter_context(_copy(image, wanted, root, watch, signer, digest))
        published, known = commit_copy(root, wanted, copied, signer, channel, watch)
    names = tuple(sorted({*published.channels, channel} - {""}))
    return PublishResult(replace(published, channels=names), known is None)


def require_digest(image: Path, manifest: Manifest, wanted: str, of_file: str = "") -> None:
    """Raise UsageError unless the digest of an image is `wanted`, or nothing is. Where that is of the file, it is read,
    unless `of_file` tells it."""
    if not wanted:
        return
    digest = manifest.digest if kind(wanted) == kind(manifest.digest) else of_file or file_digest(image)
    if not matches(digest, wanted):
        hint = f"It was built again since; compare it with: ctrain images show {image}"
        raise UsageError(f"digest mismatch: {image} is {digest}, not {wanted}", hint)


def find_same(store: Store, wanted: Manifest, signer: Optional[Signer] = None) -> Optional[PublishedImage]:
    """The newest version that is this image, by its tag and stack, too, unless it is adopted: the first name of a file
    stays. With a signer, of those that its key has signed."""
    named = (wanted.tag, wanted.stack)
    images = (image for image in reversed(store.images()) if _is_same(image.manifest, wanted))
    same = (one for one in images if wanted.adopted or (one.manifest.tag, one.manifest.stack) == named)
    return next((image for image in same if signer is None or signatures.is_signed(image, signer)), None)


def require_not_withdrawn(store: Store, wanted: Manifest) -> None:
    """Raises StoreError for an image that was withdrawn: under a new number it would leak what it leaked before."""
    for version in stored_versions(store, (RETIRED,)):
        named = version.name == wanted.name and is_withdrawn(store, version)
        if named and _is_same(read_manifest(version.manifest), wanted):
            restore = "" if version.state == REMOVED else f", or run: ctrain store restore {version.reference}"
            raise StoreError(f"this image {store.absence(version.image.stem)}", f"Build another{restore}")


def _is_same(one: Manifest, other: Manifest) -> bool:
    """Whether two images are the same: the same file, copies of one, or put together once more from the same layers."""
    if one.name != other.name or one.flat != other.flat:
        return False
    layers = [[(layer.definition, layer.digest) for layer in manifest.layers] for manifest in (one, other)]
    digests = [{manifest.digest, manifest.adopted_digest} - {""} for manifest in (one, other)]
    return not digests[0].isdisjoint(digests[1]) or (
        layers[0] == layers[1] != [] and all(digest for _, digest in layers[0])
    )


@contextlib.contextmanager
def _copy(
    image: Path, manifest: Manifest, root: Path, watch: CopyObserver, signer: Optional[Signer], wanted: str
) -> Iterator[tuple[Path, Manifest]]:
    """A copy of the image in the store, whole and signed but without a name, and its manifest. `wanted` is the digest
    that its file must have, if any. Raises NotAsBuilt, UsageError.

    The store's lock is not held: this takes minutes for 10 GB, and nobody's rollback should wait for it.
    """
    with temporary(root, image.name, watch.say) as file:
        by_regions = manifest.digest.startswith(REGIONS)
        layers = manifest.layers if by_regions else ()
        try:
            known = shared(image, manifest, open_store(root).images())
            copied = copy(image, file, Permissions(root.stat()), layers, known, watch.done)
        except ImageUnusable as error:
            raise NotAsBuilt(error.message) from error
        if manifest.digest != (copied.regions if by_regions else copied.digest):
            raise NotAsBuilt(f"{image} has changed since it was built and tested")
        digest = copied.digest
        require_digest(image, manifest, wanted, digest)
        if signer:
            watch.say(f"signing with {signer.key}")
            digest = signer.sign(file)
        yield file, replace(manifest, digest=digest, size=file.stat().st_size)


def commit_copy(
    root: Path,
    wanted: Manifest,
    copied: Optional[tuple[Path, Manifest]],
    signer: Optional[Signer],
    channel: str,
    watch: CopyObserver,
    adopted_from: str = "",
) -> tuple[PublishedImage, Optional[PublishedImage]]:
    """Give a finished copy the next number, and move the channel; the version, and it again if it was there already.

    `adopted_from` is for the log: the file that is adopted, "" if ctrain built the image.
    What a key signs states the number, and somebody may have to type a passphrase: so that is done before, with the
    number that comes next, and once more if somebody else has taken that meanwhile.
    """
    release = 0
    verdict = _scan(root, wanted, copied, signer, channel, watch) if channel else None
    while True:
        release = max(release, last_release(root, wanted)) + 1
        numbered = replace(copied[1], release=release) if copied else wanted
        signature = signatures.make(numbered, signer) if copied and signer else None
        with change(open_store(root), watch.say) as writer:
            require_not_withdrawn(writer.store, wanted)  # again: others publish, retire and withdraw meanwhile
            known = find_same(writer.store, wanted, signer)
            if not known and not copied:
                raise StoreError(f"{wanted.name} was retired while it was published", "Run the command again")
            published = known or (
                _next_number(writer, copied[0], numbered, signature, adopted_from) if copied else None
            )
            if published and verdict and verdict.digest == published.manifest.digest:
                scan.keep(writer, published, verdict)
            if published and channel:
                _promote(writer, channel, published)
        if published:
            return published, known


def _scan(
    root: Path,
    wanted: Manifest,
    copied: Optional[tuple[Path, Manifest]],
    signer: Optional[Signer],
    channel: str,
    watch: CopyObserver,
) -> Optional[Scan]:
    """The verdict that the channel asks for, on the copy or on the version that is there already. No lock is held."""
    subject = PublishedImage(copied[1], copied[0], ()) if copied else find_same(open_store(root), wanted, signer)
    return scan.for_channel(root, channel, subject, watch.say) if subject else None


def _promote(writer: LockedStore, channel: str, published: PublishedImage) -> None:
    try:
        channels.point(writer, channel, published, log.PROMOTE)
    except GateNotPassed as error:
        name = published.manifest.reference
        hint = f"{error.hint}; then: ctrain store promote {name} {channel}".lstrip("; ")
        raise GateNotPassed(f"published, but channel {channel} stays: {error.message}", hint) from error


def _next_number(
    writer: LockedStore,
    file: Path,
    manifest: Manifest,
    signature: Optional[signatures.Signature],
    adopted_from: str,
) -> Optional[PublishedImage]:
    """Publish a finished copy under its number; None if that was taken meanwhile, also by a version that is gone."""
    numbered = replace(manifest, published=manifest_writer.utc_now())
    if numbered.release <= last_release(writer.root, numbered) or not reserve(writer, numbered):
        return None
    path = writer.root / numbered.file_name
    for left in signed.added(path):  # by a publish that was interrupted: no version had this number
        left.unlink()
    if signature:
        signatures.put(writer, PublishedImage(numbered, path, ()), signature)
    action, why = (log.ADOPT, f"from {adopted_from}") if adopted_from else (log.PUBLISH, "")
    return commit_version(writer, file, numbered, action, why)


def reserve(writer: LockedStore, manifest: Manifest) -> bool:
    """Take the name of a version: False if there is something of that name.

    First its .sif is created, then its manifest under a pending name. By it `gc` tells what an interrupted publish has
    left from images that somebody else has put into the store, or whose manifest was lost: those are never removed.
    """
    path = writer.root / manifest.file_name
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if path.is_symlink() or not path.is_file() or path.stat().st_size:
            return False  # else it is what a kill at this point leaves: nothing is lost
    try:
        writer.create(pending_manifest(path), manifest_writer.as_text(manifest))
    except OSError as error:
        path.unlink()
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def commit_version(writer: LockedStore, file: Path, manifest: Manifest, action: str, why: str = "") -> PublishedImage:
    """Give a finished copy its reserved name, then its manifest: from here on it counts."""
    path = writer.root / manifest.file_name
    try:
        file.replace(path)
    except FileNotFoundError as error:  # earlier development versions held the lock while copying: their gc removes it
        raise StoreError(f"the copy {file} was removed before it was published", "Run the command again") from error
    atomic.sync_directory(writer.root)
    writer.log(action, manifest.name, manifest.version, digest=manifest.digest, why=why)
    pending_manifest(path).replace(path.with_suffix(".json"))
    atomic.sync_directory(writer.root)
    return PublishedImage(manifest, path, ())


def last_release(root: Path, manifest: Manifest) -> int:
    """The highest number that a version of this name, tag and stack has, or once had; 0 if there is none.

    An empty .sif has only its own name: a publish that was killed between its first two steps, which the next repeats.
    """
    stem = re.escape(f"{manifest.name}_{manifest.tag}-{manifest.stack}-py3-r")
    name = re.compile(rf"\.?{stem}(\d+)(-\w+)?\.(sif|json|json\.part)")
    places = [(root / directory, "*_*.*") for directory in (".", RETIRED, QUARANTINE)]
    paths = (path for place in [*places, (root, ".*_*.json.part")] for path in list_directory(*place))
    names = (path.name for path in paths if path.suffix != ".sif" or path.lstat().st_size)
    return max((int(match[1]) for match in map(name.fullmatch, names) if match), default=0)

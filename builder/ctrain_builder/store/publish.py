"""Puts an image into a store. The format and the read side are in ctrain_runtime.store.

The order makes every crash harmless: copy under a temporary name, compare the digest, make it durable, give it its
name, then the manifest (from here on the image counts), then the channel. What a crash leaves are names that start with
a dot, or a .sif without a .json.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from ctrain_builder import atomic, record
from ctrain_builder.digests import REGIONS
from ctrain_builder.store import channels, log
from ctrain_builder.store.copy import copy, shared, temporary
from ctrain_builder.store.sign import Signer
from ctrain_builder.store.writer import LOCK, Access, Writer, change, explained
from ctrain_runtime.errors import ImageTestError, ImageUnusable, StoreError
from ctrain_runtime.manifest import Manifest
from ctrain_runtime.store import LAYOUT_VERSION, QUARANTINE, RETIRED, STORE_MARKER, PublishedImage


@dataclass(frozen=True)
class Outcome:
    """`new_store`: it was made for this. `new_version`: False when the store had the same digest already."""

    image: PublishedImage
    new_store: bool
    new_version: bool


@dataclass(frozen=True)
class Watch:
    """Whom to tell of a copy: what a person should know, and how many bytes are done."""

    say: Callable[[str], None]
    done: Callable[[int], None]


def publish(
    image: Path,
    manifest: Manifest,
    root: Path,
    channel: str = "",
    watch: Watch = Watch(lambda _: None, lambda _: None),
    signer: Optional[Signer] = None,
) -> Outcome:
    """Copy a tested image into the store at `root` under its next release number; move `channel` to it if given.

    Raises ImageTestError, ImageUnusable, StoreError, DiskFullError, UsageError.
    """
    if channel:
        channels.check(channel)
    if signer:
        signer.check()
    if not manifest.tested:
        raise ImageTestError(f"image {image} has not passed its tests", "Build it again with: ctrain build")
    with explained(root):
        new_store = prepare(root)
    with change(root, watch.say) as writer:
        wanted = replace(manifest, signed=signer is not None)
        known = [found for found in writer.store.images() if _is_same(found.manifest, wanted)]
        published = known[-1] if known else _add(image, wanted, writer, watch, signer)
        if channel:
            channels.point(writer, channel, published, log.PROMOTE)
    names = tuple(sorted({*published.channels, channel} - {""}))
    return Outcome(replace(published, channels=names), new_store, not known)


def _is_same(one: Manifest, other: Manifest) -> bool:
    """Whether two images are the same: the same file, or put together once more from the same layers; and signed, if
    the `other` is to be."""
    if one.name != other.name or one.flat != other.flat or one.signed < other.signed:
        return False
    layers = [[(layer.definition, layer.digest) for layer in manifest.layers] for manifest in (one, other)]
    return one.digest == other.digest or (layers[0] == layers[1] and all(digest for _, digest in layers[0]))


def is_new(root: Path) -> bool:
    """Whether a folder is absent or empty, so that it can become a store. One with other things in it is refused."""
    names = [path.name for path in root.iterdir()] if root.exists() else []
    if (root / STORE_MARKER).exists():  # asked after: another may be making it a store just now, and begins with this
        return False
    others = [name for name in names if not name.startswith((f".{STORE_MARKER}", LOCK))]
    if others:
        raise StoreError(
            f"{root} is not empty and not a store (it has {others[0]})", "Choose an empty or absent folder"
        )
    return True


def prepare(root: Path) -> bool:
    """Make an absent or empty folder a store; True if it was made one."""
    if not is_new(root):
        return False
    if not root.exists():
        root.mkdir(parents=True)
        root.chmod(0o755)
    access = Access(root.stat())
    atomic.write_text(root / STORE_MARKER, json.dumps({"layout": LAYOUT_VERSION}) + "\n", access.file, access.group)
    return True


def _add(image: Path, manifest: Manifest, writer: Writer, watch: Watch, signer: Optional[Signer]) -> PublishedImage:
    """Copy the image in and give it the next number."""
    root = writer.root
    with temporary(root, image.name, watch.say) as file:
        manifest = _whole(image, manifest, file, writer, watch)
        if signer:
            watch.say(f"signing with {signer.key}")
            manifest = replace(manifest, digest=signer.sign(file), size=file.stat().st_size)
        for release in itertools.count(_last_release(root, manifest) + 1):
            numbered = replace(manifest, release=release, published=record.utc_now())
            path = root / numbered.file_name
            with contextlib.suppress(FileExistsError):  # a file of that name, left by a crash, keeps it
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                break
        return place(writer, file, numbered, log.PUBLISH)


def place(writer: Writer, file: Path, manifest: Manifest, action: str, why: str = "") -> PublishedImage:
    """Give a finished copy its name, then write its manifest: from here on it counts."""
    path = writer.root / manifest.file_name
    file.replace(path)
    atomic.sync_folder(writer.root)
    writer.log(action, manifest.name, manifest.version, digest=manifest.digest, why=why)
    writer.write(path.with_suffix(".json"), manifest)
    return PublishedImage(manifest, path, ())


def _whole(image: Path, manifest: Manifest, file: Path, writer: Writer, watch: Watch) -> Manifest:
    """Copy an image as it is. Its manifest in the store. Raises ImageUnusable."""
    parts = shared(image, manifest, writer.store.images())
    by_regions = manifest.digest.startswith(REGIONS)
    copied = copy(image, file, writer.access, manifest.layers if by_regions else (), parts, watch.done)
    if manifest.digest != (copied.regions if by_regions else copied.digest):
        raise ImageUnusable(f"{image} has changed since it was built and tested", "Build it again with: ctrain build")
    return replace(manifest, digest=copied.digest)


def _last_release(root: Path, manifest: Manifest) -> int:
    """The highest number that a version of this name, tag and stack has, or once had; 0 if there is none."""
    stem = re.escape(f"{manifest.name}_{manifest.tag}-{manifest.stack}-py3-r")
    name = re.compile(rf"{stem}(\d+)(-\w+)?\.(sif|json)")
    names = (path.name for folder in (".", RETIRED, QUARANTINE) for path in (root / folder).glob("*_*.*"))
    return max((int(found[1]) for found in map(name.fullmatch, names) if found), default=0)

"""Channels: movable names of versions. Each is a relative link in STORE/channels, replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path

from ctrain_builder import atomic
from ctrain_builder.store import log
from ctrain_builder.store.writer import Writer
from ctrain_runtime.errors import StoreError, UsageError
from ctrain_runtime.store import CHANNELS, TAG_RE, PublishedImage, channel_target, resolve, select


def check(channel: str) -> None:
    """Raise UsageError for what can't be a channel's name."""
    if not TAG_RE.fullmatch(channel):
        raise UsageError(f"{channel!r} is not a channel name", "Use letters, digits, '.' and '-'")


def promote(writer: Writer, name: str, wanted: str, channel: str) -> tuple[str, PublishedImage]:
    """Make a channel point to the version, channel or digest `wanted`: (version before, image).

    Raises ImageNotFound, UsageError.
    """
    check(channel)
    image = resolve([writer.store], f"{name}:{wanted}")
    return point(writer, channel, image, log.PROMOTE), image


def rollback(writer: Writer, name: str, channel: str) -> tuple[str, PublishedImage]:
    """Take the last move of a channel back: (version before, image). Done again, it goes one further back.

    Raises StoreError when the log knows no earlier version that is still published.
    """
    check(channel)
    images = writer.store.images()
    earlier = _history(writer.root, name, channel)
    now = next((one for one in images if one.manifest.name == name and channel in one.channels), None)
    if now and now.manifest.version in earlier:  # what is behind it in the log was begun and not done
        earlier = earlier[: len(earlier) - 1 - earlier[::-1].index(now.manifest.version)]
    found = select(images, name, earlier[-1]) if earlier else None
    if found is None:
        what = f"its last one, {earlier[-1]}, is not published any more" if earlier else "the log knows of none"
        hint = f"Choose a version: ctrain store promote {name} VERSION {channel}"
        raise StoreError(f"channel {channel} of {name} can't go back to an earlier version: {what}", hint)
    return point(writer, channel, found, log.ROLLBACK), found


def _history(root: Path, name: str, channel: str) -> list[str]:
    """The versions that a channel has pointed to and not been taken back from, oldest first."""
    versions: list[str] = []
    for entry in log.read(root):
        if (entry.name, entry.channel) != (name, channel):
            continue
        if entry.action == log.ROLLBACK:
            while versions and versions[-1] != entry.version:
                versions.pop()
        elif versions[-1:] != [entry.version]:
            versions.append(entry.version)
    return versions


def point(writer: Writer, channel: str, image: PublishedImage, action: str, why: str = "") -> str:
    """Make the channel's link point to the image; the version that it pointed to before ("" for none)."""
    folder = writer.folder(CHANNELS)
    link = folder / f"{image.manifest.name}_{channel}.sif"
    target = channel_target(link)
    before = next((one.manifest.version for one in writer.store.images() if one.path.name == target), "")
    if target == image.path.name:
        return before
    writer.log(action, image.manifest.name, image.manifest.version, channel=channel, before=before, why=why)
    temporary = folder / f".{link.name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("..") / image.path.name)
    temporary.replace(link)
    atomic.sync_folder(folder)
    return before

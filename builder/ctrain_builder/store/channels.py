"""Channels: movable names of versions. Each is a relative link in STORE/channels, replaced in one step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder.files import atomic
from ctrain_builder.store import gates, log
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import ImageNotFound, StoreError, UsageError
from ctrain_runtime.store.manifest import is_version, version_of
from ctrain_runtime.store.references import resolve
from ctrain_runtime.store.store import CHANNELS, NAME_RE, TAG_RE, PublishedImage, Store, channel_target, list_directory


@dataclass(frozen=True)
class Move:
    """The version that a channel points to now, and the one before; "" where it is new."""

    image: PublishedImage
    before: str


def check(channel: str) -> None:
    """Raise UsageError for what can't be a channel's name."""
    if is_version(channel):
        raise UsageError(f"channel name {channel!r} looks like a version", "Use a word such as prod or dev")
    if not TAG_RE.fullmatch(channel):
        raise UsageError(f"{channel!r} is not a channel name", "Use letters, digits, '.' and '-'")


def earlier_version(store: Store, name: str, channel: str) -> PublishedImage:
    """What a channel pointed to before its last move; after a rollback to that, what it pointed to before that.

    Raises ImageNotFound for a channel that never was; StoreError without an earlier version that is still published.
    """
    earlier = _history(store.root, name, channel, pointed(store.root, name, channel))
    hint = f"Choose a version: ctrain store promote {name} VERSION {channel}"
    if not earlier:
        require(store.root, name, channel)
        if log.is_lost(store.root):
            raise StoreError(f"the earlier version of {channel} of {name} is unknown: the store's log is lost", hint)
        raise StoreError(f"{channel} of {name} has had no earlier version", hint)
    versions = {one.manifest.version: one for one in store.images() if one.manifest.name == name}
    if earlier[-1] not in versions:
        what = f"its last one, {earlier[-1]}, is no longer published"
        raise StoreError(f"channel {channel} of {name} cannot be rolled back: {what}", hint)
    return versions[earlier[-1]]


def history(store: Store, name: str, channel: str) -> list[str]:
    """The versions that a channel has pointed to and not been taken back from, oldest first, with the present one."""
    now = pointed(store.root, name, channel)
    return [*_history(store.root, name, channel, now), *([now] if now else [])]


def _history(root: Path, name: str, channel: str, now: str) -> list[str]:
    """The versions that a channel has pointed to before `now` and not been taken back from, oldest first.

    An entry is written before its change is made: that it was made is known from what the next one found, or from what
    the channel points to now.
    """
    versions: list[str] = []
    moved: Optional[log.Entry] = None
    for entry in log.read(root):
        if (entry.name, entry.channel) != (name, channel) or entry.action not in (*log.MOVES, log.CHANNEL_RM):
            continue
        _follow(versions, moved, entry.before)
        moved = None if entry.action == log.CHANNEL_RM else entry
    _follow(versions, moved, now)
    return versions[:-1] if now else versions


def _follow(versions: list[str], moved: Optional[log.Entry], seen: str) -> None:
    """Add what a channel was seen to point to after a move, or was taken back to by it; "" if it was gone."""
    if moved and moved.version == seen and moved.action == log.ROLLBACK and seen in versions:
        del versions[len(versions) - versions[::-1].index(seen) :]
    elif seen and versions[-1:] != [seen]:
        versions.append(seen)


def point(writer: LockedStore, channel: str, image: PublishedImage, action: str, why: str = "") -> str:
    """Make the channel's link point to the image; the version that it pointed to before ("" for none).

    Raises UsageError for what cannot be a channel's name; GateNotPassed, unless it is taken back to what it has pointed
    to before: that must always be possible."""
    check(channel)
    link = _link(writer.root, image.manifest.name, channel)
    before = pointed(writer.root, image.manifest.name, channel)
    if channel_target(link) != image.path.name:
        if action != log.ROLLBACK:
            gates.require(writer.store, image, channel)
        writer.log(action, image.manifest.name, image.manifest.version, channel=channel, before=before, why=why)
        relink(writer, image.manifest.name, channel, image.path.name)
    return before


def promote(writer: LockedStore, reference: str, channel: str) -> Move:
    """Make a channel point to what NAME:VERSION, NAME:CHANNEL or a digest means. Raises as `point`, ImageNotFound."""
    image = resolve([writer.store], reference)
    return Move(image, point(writer, channel, image, log.PROMOTE))


def rollback(writer: LockedStore, name: str, channel: str) -> Move:
    """Undo a channel's last move. Raises as `earlier_version`."""
    image = earlier_version(writer.store, name, channel)
    return Move(image, point(writer, channel, image, log.ROLLBACK))


def promotion(store: Store, reference: str, channel: str) -> Move:
    """What `promote` would do. Raises as it."""
    image = resolve([store], reference)
    gates.require(store, image, channel)
    return Move(image, pointed(store.root, image.manifest.name, channel))


def relink(writer: LockedStore, name: str, channel: str, target: str) -> None:
    """Replace a channel's link by one to a file of the store's root."""
    writer.directory(CHANNELS)
    atomic.link(_link(writer.root, name, channel), Path("..") / target)


def links(root: Path, name: str) -> dict[str, str]:
    """The channels of an image, each with the name of the file that it points to ("" if it is no channel's link)."""
    paths = list_directory(root / CHANNELS, f"{name}_*.sif") if NAME_RE.fullmatch(name) else []
    return {link.stem.partition("_")[2]: channel_target(link) for link in paths}


def require(root: Path, name: str, channel: str) -> None:
    """Raise ImageNotFound unless an image has this channel; StoreError for a file in its place."""
    known, link = links(root, name), _link(root, name, channel)
    if channel not in known:
        hint = f"{suggest(channel, known)} Channels of {name}: {', '.join(known) or 'none'}".strip()
        raise ImageNotFound(f"{name} has no channel {channel!r} in {root}", hint)
    if not link.is_symlink():
        raise StoreError(f"{link} is not a symlink, so it may be somebody's file", "Move it out of the store")


def remove(writer: LockedStore, name: str, channel: str, why: str = "") -> None:
    """Remove a channel. Raises ImageNotFound; StoreError for a file."""
    require(writer.root, name, channel)
    writer.log(log.CHANNEL_RM, name, "", channel=channel, before=pointed(writer.root, name, channel), why=why)
    link = _link(writer.root, name, channel)
    link.unlink()
    atomic.sync_directory(link.parent)


def _link(root: Path, name: str, channel: str) -> Path:
    return root / CHANNELS / f"{name}_{channel}.sif"


def pointed(root: Path, name: str, channel: str) -> str:
    """The version that a channel points to, published or not; "" for none."""
    return version_of(Path(channel_target(_link(root, name, channel))).stem)

"""A store that mirrors another one, as its policy declares: what is retired or withdrawn there is so here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.store import channels, lifecycle, sync
from ctrain_builder.store.endpoints import StoreEndpoint
from ctrain_builder.store.inventory import is_withdrawn, stored_versions
from ctrain_builder.store.refresh import Say, change
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.base.paths import store_path
from ctrain_runtime.errors import StoreError, UsageError
from ctrain_runtime.store import policy
from ctrain_runtime.store.manifest import read_manifest
from ctrain_runtime.store.policy import Mirror
from ctrain_runtime.store.store import RETIRED, WITHDRAWN, PublishedImage, Store, open_store


@dataclass(frozen=True)
class Follow:
    """A version that is to be taken out, as it was in the source. `withdrawn`: the reason there; "" if it was retired.
    `needed_by`: the channels that keep a retired one."""

    image: PublishedImage
    withdrawn: str
    needed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Followed:
    """What was copied, or would be; the declared images that the source no longer offers; what is taken out."""

    source: Path
    copied: sync.Plan
    ended: tuple[str, ...]
    taken_out: list[Follow]


def run(target: Store, dry_run: bool, say: Say, copying: sync.Copying) -> Followed:
    """Copy what the declared source has, then take out what it no longer offers. Raises as `declared` and `sync.run`;
    UsageError for a store that mirrors itself."""
    mirror = declared(target.root)
    source = open_store(store_path(mirror.source))
    if source.root.resolve() == target.root.resolve():
        raise UsageError(f"store {target.root} is declared a mirror of itself", f"Correct {target.root / policy.FILE}")
    ended = tuple(reference for reference in mirror.images if _has_ended(source, reference))
    wanted = sync.Request([one for one in mirror.images if one not in ended], channels=True, dry_run=dry_run)
    copied = sync.Plan()
    if wanted.images or not mirror.images:
        copied = sync.run(StoreEndpoint(source.root), StoreEndpoint(target.root), wanted, say, copying)
    if dry_run:
        return Followed(source.root, copied, ended, behind(source, target))
    with change(target, say) as writer:
        return Followed(source.root, copied, ended, follow(writer, source))


def declared(root: Path) -> Mirror:
    """What the store at `root` mirrors. Raises StoreError if it is no mirror, ConfigError."""
    mirror = policy.load(root).mirror
    if mirror is None:
        hint = f"Write to {root / policy.FILE}: mirror: {{source: DIR, images: [NAME, ...]}}"
        raise StoreError(f"store {root} is not declared a mirror", hint)
    return mirror


def _has_ended(source: Store, reference: str) -> bool:
    """Whether a store has offered an image, a version or a channel, and no longer does; what it never had is a
    mistake."""
    name, _, word = reference.partition(":")
    offered = [one for one in source.images() if one.manifest.name == name]
    if any(word in ("", one.manifest.version, *one.channels) for one in offered):
        return False
    known = [one for one in stored_versions(source, (RETIRED,)) if one.name == name]
    return any(word in ("", one.version) for one in known) or word in channels.links(source.root, name)


def behind(source: Store, target: Store) -> list[Follow]:
    """The versions that `target` still offers and `source` no longer does: by its own evidence, which has the same
    digest. A version that is only missing there is none."""
    gone = {one.image.name: one for one in stored_versions(source, (RETIRED,))}
    due = []
    for image in target.images():
        version = gone.get(image.path.name)
        if version is None or read_manifest(version.manifest).digest != image.manifest.digest:
            continue
        why = _reason(source, version.image.stem) if is_withdrawn(source, version) else ""
        kept = () if why else tuple(f"channel {channel}" for channel in image.channels)
        due.append(Follow(image, why, kept))
    return due


def follow(writer: LockedStore, source: Store) -> list[Follow]:
    """Take out of a store what `source` no longer offers."""
    due = behind(source, writer.store)
    for one in due:
        reference = one.image.manifest.reference
        if one.withdrawn:
            lifecycle.withdraw(writer, [reference], one.withdrawn)
        elif not one.needed_by:
            lifecycle.retire(writer, [reference], f"as in {source.root}")
    return due


def _reason(store: Store, stem: str) -> str:
    """Why a version was withdrawn, in one line."""
    text = (store.root / f"{stem}{WITHDRAWN}").read_text("utf-8", "replace")
    return " ".join(text.split()) or "withdrawn in the mirrored store"

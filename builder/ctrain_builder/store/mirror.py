"""A store that mirrors another one, as its policy declares: what is retired or withdrawn there is so here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.store import lifecycle
from ctrain_builder.store.inventory import is_withdrawn, stored_versions
from ctrain_builder.store.writer import LockedStore
from ctrain_runtime.errors import StoreError
from ctrain_runtime.store import policy
from ctrain_runtime.store.manifest import read_manifest
from ctrain_runtime.store.policy import Mirror
from ctrain_runtime.store.store import RETIRED, WITHDRAWN, PublishedImage, Store


@dataclass(frozen=True)
class Follow:
    """A version that is to be taken out, as it was in the source. `withdrawn`: the reason there; "" if it was retired.
    `needed_by`: the channels that keep a retired one."""

    image: PublishedImage
    withdrawn: str
    needed_by: tuple[str, ...] = ()


def declared(root: Path) -> Mirror:
    """What the store at `root` mirrors. Raises StoreError if it is no mirror, ConfigError."""
    found = policy.load(root).mirror
    if found is None:
        hint = f"Write to {root / policy.FILE}: mirror: {{source: DIR, images: [NAME, ...]}}"
        raise StoreError(f"store {root} is not declared a mirror", hint)
    return found


def behind(source: Store, target: Store) -> list[Follow]:
    """The versions that `target` still offers and `source` no longer does: by its own evidence, which has the same
    digest. A version that is only missing there is none."""
    gone = {one.image.name: one for one in stored_versions(source, (RETIRED,))}
    found = []
    for image in target.images():
        version = gone.get(image.path.name)
        if version is None or read_manifest(version.manifest).digest != image.manifest.digest:
            continue
        why = _reason(source, version.image.stem) if is_withdrawn(source, version) else ""
        kept = () if why else tuple(f"channel {channel}" for channel in image.channels)
        found.append(Follow(image, why, kept))
    return found


def follow(writer: LockedStore, source: Store) -> list[Follow]:
    """Take out of a store what `source` no longer offers."""
    found = behind(source, writer.store)
    for one in found:
        reference = one.image.manifest.reference
        if one.withdrawn:
            lifecycle.withdraw(writer, [reference], one.withdrawn)
        elif not one.needed_by:
            lifecycle.retire(writer, [reference], f"as in {source.root}")
    return found


def _reason(store: Store, stem: str) -> str:
    """Why a version was withdrawn, in one line."""
    text = (store.root / f"{stem}{WITHDRAWN}").read_text("utf-8", "replace")
    return " ".join(text.split()) or "withdrawn in the mirrored store"

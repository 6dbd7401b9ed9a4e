"""Which published image a name means: NAME, NAME:CHANNEL, NAME:VERSION or NAME@DIGEST. One module parses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from ctrain_runtime.base.digest import matches
from ctrain_runtime.base.suggest import closest, suggest
from ctrain_runtime.errors import ImageNotFound
from ctrain_runtime.store.manifest import file_stem, is_version
from ctrain_runtime.store.store import DEFAULT_CHANNEL, NAME_RE, TAG_RE, PublishedImage, Store, StoreContents

_DIGEST = "sha256:"


def join(name: str, wanted: Optional[str]) -> str:
    """The reference for NAME and a version, channel or digest of it, if any."""
    return f"{name}{'@' if wanted.startswith(_DIGEST) else ':'}{wanted}" if wanted else name


def join_all(words: Iterable[str]) -> list[str]:
    """The references that command-line words name: also `NAME VERSION` and `NAME sha256:...` are each one."""
    references: list[str] = []
    for word in words:
        follows = word.startswith(_DIGEST) or (TAG_RE.fullmatch(word) and is_version(word))
        if references and follows and NAME_RE.fullmatch(references[-1]):
            word = join(references.pop(), word)
        references.append(word)
    return references


def select(contents: StoreContents, name: str, wanted: str = "") -> Optional[PublishedImage]:
    """The image `name` whose version, digest or channel is `wanted`; if "", that of channel prod, else the newest.

    Without `wanted`, a flat image is selected only if no layered one exists: it substitutes for the layered one.
    Raises StoreError if that channel exists and points to no published image: it never falls back to another.
    """
    named = [image for image in contents.images if image.manifest.name == name]
    channel = wanted or DEFAULT_CHANNEL
    exact = [image for image in named if wanted == image.manifest.version or matches(image.manifest.digest, wanted)]
    pointed = [image for image in named if channel in image.channels]
    if exact or pointed:
        return (exact or pointed)[0]
    for dangling in contents.dangling:
        if (dangling.name, dangling.channel) == (name, channel):
            raise dangling.error()
    layered = [image for image in named if not image.manifest.flat]
    return (layered or named)[-1] if named and not wanted else None


def resolve(stores: list[Store], reference: str) -> PublishedImage:
    """The published image for NAME, NAME:CHANNEL, NAME:VERSION or NAME@DIGEST; the first store that has it wins.

    Raises ImageNotFound listing the available images; StoreError for a channel that points to no published image.
    """
    name, wanted = reference.split("@", 1) if "@" in reference else (reference.partition(":")[::2])
    scans = [store.scan() for store in stores]
    for scan in scans:
        image = select(scan, name, wanted)
        if image:
            return image
    for store in stores if is_version(wanted) and NAME_RE.fullmatch(name) and TAG_RE.fullmatch(wanted) else ():
        if absence := store.absence(file_stem(name, wanted)):
            raise ImageNotFound(f"image {reference!r} {absence}", "List published images with: ctrain images")
    images = [image for scan in scans for image in scan.images]
    manifests = [image.manifest for image in images]
    available = sorted({manifest.reference if wanted else manifest.name for manifest in manifests})
    roots = ", ".join(str(store.root) for store in stores) or "any store (none configured)"
    publish = "Pass --image ./FILE.sif or --store DIR; or publish an image: ctrain publish, ctrain store adopt"
    hint = f"{_suggestion(images, name, wanted)} Available: {', '.join(available)}".strip() if available else publish
    damaged = [str(error) for scan in scans for error in scan.damaged]
    raise ImageNotFound(f"image {reference!r} not found in {roots}", "; ".join([hint, *damaged]))


def _suggestion(images: list[PublishedImage], name: str, wanted: str) -> str:
    """ "Did you mean" a similar name, or of an existing name a similar version or channel; "" without any."""
    names = {image.manifest.name for image in images}
    if name not in names:
        return suggest(name, names)
    versions = [(image.manifest.version, *image.channels) for image in images if image.manifest.name == name]
    near = closest(wanted, (word for words in versions for word in words))
    return f"Did you mean '{name}:{near}'?" if near else ""

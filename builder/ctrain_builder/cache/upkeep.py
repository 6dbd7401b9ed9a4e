"""What is in a builder's cache, which images need it, and how it is removed."""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.cache import eviction
from ctrain_builder.cache.build_cache import DIRECTORIES, Cache
from ctrain_builder.cache.cache_files import load_record
from ctrain_builder.cache.cached_layers import partition
from ctrain_builder.cache.memory import LayerBuild
from ctrain_builder.plan import layer_key
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.errors import ConfigError, ImageUnusable
from ctrain_runtime.store.manifest import Layer, read_manifest

_KINDS = {"layers": "layer", "compiled": "compiled", "images": "image"}  # by directory


@dataclass(frozen=True)
class Entry:
    """A layer, what one has compiled, or an image. `size` in bytes; `used` in seconds since 1970; `images` need it, as
    far as is known."""

    path: Path
    kind: str
    name: str
    size: int
    used: float
    images: tuple[str, ...]


def entries(cache: Cache) -> list[Entry]:
    """All of these, the most recently used first."""
    users = _users(cache)
    listed = []
    for path in eviction.large_files(cache):
        about, kind = path.stat(), _KINDS[path.parent.name]
        names = {(path.stem, path.stem)} if kind == "image" else users[path.stem]
        definition = "/".join(sorted({name for name, _ in names})) or path.stem[:12]
        images = tuple(sorted({image for _, image in names}))
        listed.append(Entry(path, kind, definition, about.st_size, about.st_mtime, images))
    return sorted(listed, key=lambda entry: -entry.used)


def sizes(cache: Cache) -> dict[str, int]:
    """Bytes on disk, by directory of the cache."""
    directories = [cache.root / name for name in sorted(DIRECTORIES)]
    return {path.name: sum(map(_blocks, path.rglob("*"))) for path in directories if not path.is_symlink()}


def _blocks(path: Path) -> int:
    """Bytes on disk of a regular file, else 0; never through a link. A running build may just have removed it."""
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0


def remove(cache: Cache, due: Iterable[Entry]) -> list[Entry]:
    """Remove what no build uses just now. Returns what was removed."""
    return [entry for entry in due if eviction.remove(cache, entry.path)]


def remove_damaged(cache: Cache, image: Path, layers: Iterable[Layer]) -> list[str]:
    """Remove an image that is not as it was built, and those of its layers that are not: the next build makes them
    again. Returns what was removed."""
    removed = ["the image"] if eviction.remove(cache, image) else []
    for layer in layers:
        for is_base in (True, False):
            path, recorded = cache.layers.path(layer.key, is_base), cache.layers.known_content(layer.key, is_base)
            if recorded and path.is_file() and _digest(path) != recorded.digest and eviction.remove(cache, path):
                removed.append(f"layer {layer.definition}")
    return removed


def _digest(layer: Path) -> str:
    """Of a layer's partition; "" if it has none."""
    try:
        return file_digest(layer, *partition(layer, layer.suffix))
    except (ImageUnusable, ValueError):
        return ""


def clear(cache: Cache) -> None:
    """Remove everything that no build uses just now."""
    remove(cache, entries(cache))
    eviction.forget(cache)
    cache.work.sweep()


def _users(cache: Cache) -> defaultdict[str, set[tuple[str, str]]]:
    """Key or recipe of a layer -> (definition, image) for images in the cache and the last build of each."""
    users: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in (cache.root / "images").glob("*.json"):
        try:
            layers = read_manifest(path).layers
        except ConfigError:
            continue  # of another version, which builds the image again
        for layer in layers:
            users[layer.key].add((layer.definition, path.stem))
    for path in (cache.root / "inputs").glob("*.json"):
        image, _, definition = path.stem.rpartition(".")
        if made := load_record(LayerBuild, path):
            for name in (layer_key.compute_key(made.inputs), made.recipe):
                users[name].add((definition, image))
    return users

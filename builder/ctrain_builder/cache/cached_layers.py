"""The layers of a cache, each with a description of its content beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Optional

from ctrain_builder.cache.cache_files import CacheFiles, load_record
from ctrain_builder.files.layer_content import LayerContent
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.store import sif

BASE_SUFFIX = ".sif"


@dataclass(frozen=True)
class CachedLayers:
    root: Path

    def path(self, key: str, is_base: bool) -> Path:
        return self.root / "layers" / f"{key}{BASE_SUFFIX if is_base else '.sqsh'}"

    def has(self, key: str, is_base: bool) -> bool:
        return self.path(key, is_base).is_file()

    def add(self, made: Path, target: Path, built: str, origin: str = "", private: bool = False) -> None:
        """Move a finished layer, or what it has compiled, to its place, then describe it; the rest: LayerContent."""
        content = replace(_content(made, target.suffix), built=built, origin=origin, private=private)
        target.with_suffix(".json").unlink(missing_ok=True)  # first: it describes the file that is replaced
        CacheFiles(self.root).place(made, target)
        self._describe(target, content)

    def content(self, key: str, is_base: bool) -> LayerContent:
        """What is in a layer of the cache. Reads all of it if that is not recorded."""
        content, path = self.known_content(key, is_base), self.path(key, is_base)
        if content is None:
            content = _content(path, path.suffix)
            self._describe(path, content)
        return content

    def known_content(self, key: str, is_base: bool) -> Optional[LayerContent]:
        """What is in a layer of the cache; None if it is not in the cache, or not recorded."""
        return load_record(LayerContent, self.path(key, is_base).with_suffix(".json"))

    def built(self, key: str, is_base: bool) -> str:
        """When a layer was built (UTC); "" if that is not recorded."""
        content = self.known_content(key, is_base)
        return content.built if content else ""

    def _describe(self, path: Path, content: LayerContent) -> None:
        # Earlier versions know only what most layers have.
        known = {name: value for name, value in asdict(content).items() if value != "" and value is not False}
        CacheFiles(self.root).write(path.with_suffix(".json"), known)


def partition(layer: Path, suffix: str) -> tuple[int, int]:
    """Where in a layer's file its partition is, and how large, in bytes: of a base it is only a part of the file."""
    if suffix == BASE_SUFFIX:
        [system] = sif.partitions(layer)
        return system.offset, system.size
    return 0, layer.stat().st_size


def _content(layer: Path, suffix: str) -> LayerContent:
    offset, size = partition(layer, suffix)
    return LayerContent(file_digest(layer, offset, size), size)

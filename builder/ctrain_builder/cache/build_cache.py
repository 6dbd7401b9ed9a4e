"""The builder's cache: what is in it, and the parts of the code that each know one kind of it. All of it can be made
again.

layers/KEY.sif    a base layer        images/NAME_TAG-STACK[-flat].{sif,json}   finished images with their manifests
layers/KEY.sqsh   an upper layer      inputs/NAME_TAG-STACK.DEFINITION.json     what a layer was made of last
layers/KEY.json   what is in it       facts/FINGERPRINT.json    answers of programs in images, and tests that passed
durations/NAME_TAG-STACK.json   of an image's steps    compiled/RECIPE.{tar,json}    what layers have compiled: compiled
logs/NAME_TAG-STEP.log    locks/ of running builds    tmp/ their work directories    space/ what they may still write
host    the machine that uses it, where locks do not reach others    ctrain-cache.json    that it is a cache: cache_root
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.cache.cache_files import CacheFiles
from ctrain_builder.cache.cache_locks import CacheLocks
from ctrain_builder.cache.cached_layers import CachedLayers
from ctrain_builder.cache.memory import Memory
from ctrain_builder.cache.work_directories import WorkDirectories
from ctrain_builder.definitions.image_spec import ImageSpec

DIRECTORIES = ("layers", "compiled", "images", "inputs", "facts", "durations", "logs", "locks", "tmp", "space")


@dataclass(frozen=True)
class Cache:
    root: Path

    @property
    def layers(self) -> CachedLayers:
        return CachedLayers(self.root)

    @property
    def memory(self) -> Memory:
        return Memory(self.root)

    @property
    def files(self) -> CacheFiles:
        return CacheFiles(self.root)

    @property
    def work(self) -> WorkDirectories:
        return WorkDirectories(self.root)

    @property
    def locks(self) -> CacheLocks:
        return CacheLocks(self.root)

    def image(self, spec: ImageSpec, flat: bool = False) -> Path:
        return self.root / "images" / f"{spec.file_stem}{'-flat' if flat else ''}.sif"

    def log(self, spec: ImageSpec, step: str) -> Path:
        """The log of one step of an image's build, emptied."""
        return self.files.new_log(f"{spec.name}_{spec.tag}-{step}")

"""Layers that machines share through registries: what of a plan is looked up, downloaded, and uploaded.

Who can write to a repository decides what is in the images of all who take layers from it: a key says what a layer was
made of, not that this is so. So only repositories that the builder, or the site, has named are asked; see docs/ci.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cached_layers import partition
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.layers import inherit, pack
from ctrain_builder.layers.container import Container
from ctrain_builder.plan import build_plan, redistribution
from ctrain_builder.plan.build_plan import BuildPlan, PlannedLayer
from ctrain_builder.progress import Progress
from ctrain_builder.registry import layers
from ctrain_builder.registry.stored_layer import StoredLayer, Unusable
from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from ctrain_runtime.store.manifest import Manifest

_LOG_SECONDS = 1.0  # between two lines of a log


@dataclass(frozen=True)
class SharedLayers:
    """Repositories (oras://HOST/PATH): `sources` to take layers from, and `target` ("": none) to bring them to.
    `bases`: also those that start from images of others.

    `failed` are sources that did not answer. They are not asked again.
    """

    sources: tuple[str, ...] = ()
    target: str = ""
    bases: bool = False
    client: Callable[[], RegistryClient] = RegistryClient
    failed: set[str] = field(default_factory=set)

    def with_offers(self, plan: BuildPlan, cache: Cache, say: Callable[[str], None]) -> BuildPlan:
        """`plan` with what the sources have of the layers that don't exist. `say` is told what went wrong."""
        client = self.client()

        def digest(layer: PlannedLayer) -> str:
            content = cache.layers.known_content(layer.key, layer.definition.is_base)
            return content.digest if content else ""

        def find(layer: PlannedLayer, below: Optional[str]) -> Optional[StoredLayer]:
            for source in (source for source in self.sources if source not in self.failed):
                try:
                    offer = layers.find(client, source, layer.key, plan.arch)
                    if offer and build_plan.fits(layer, offer, below):
                        return offer
                except Unusable as error:
                    say(f"{error.message}; layer {layer.name} is built")
                except CtrainError as error:
                    self.failed.add(source)
                    say(f"{error.message}; no layers are taken from {source}")
            return None

        return build_plan.with_offers(plan, digest, find)

    def fetch(
        self, container: Container, planned: PlannedLayer, offer: StoredLayer, below: list[Path], log: Path
    ) -> Path:
        """Download a layer. Returns a new SIF for a base, else the squashfs file, in the work directory.

        Raises RegistryError; BuildError if it is no file system, or that of another key.
        """
        packed = pack.packed(container)
        try:
            layers.download(self.client(), offer, packed, _meter(log, offer.content.size, container.tick))
        except Unreachable:
            self.failed.add(offer.content.origin)
            raise
        if planned.definition.is_base:
            return inherit.as_base(container, packed, log, offer.arch)
        inherit.require_key(container, packed, below, planned.key, log)
        return packed

    def upload(self, plan: BuildPlan, manifest: Manifest, cache: Cache, progress: Progress) -> Optional[CtrainError]:
        """Bring the layers of an image to the target; what went wrong."""
        client, log = self.client(), cache.log(plan.spec, "upload")
        parents = ["", *(layer.digest for layer in manifest.layers)]
        for planned, parent in zip(plan.layers, parents):
            path = cache.layers.path(planned.key, planned.definition.is_base)
            content = cache.layers.known_content(planned.key, planned.definition.is_base) or LayerContent("", 0)
            if planned.inherited or content.origin == self.target:
                continue
            if why := self._reason_to_keep(plan, planned, content):
                progress.note(f"layer {planned.name} is not uploaded: {why}")
                continue
            layer = StoredLayer(planned.key, planned.name, plan.arch, parent, replace(content, origin=self.target))
            step = progress.begin("upload", planned.name, log)
            done = _meter(log, content.size, progress.tick)
            try:
                outcome = _upload(client, layer, path, done)
            except CtrainError as error:
                step.end("failed")
                return error
            step.end(outcome, content.size)
            if outcome == layers.NEWER_EXISTS:
                break  # what lies above ours does not fit it
        return None

    def _reason_to_keep(self, plan: BuildPlan, layer: PlannedLayer, content: LayerContent) -> str:
        if redistribution.declared(plan) == redistribution.NO:
            return "images.yaml says of the image or its parent: redistribute: no"
        if content.origin:
            return f"it comes from {content.origin}"
        if content.private:
            return "it was built with a password of the build host at hand"
        if not content.built:
            return "it is not in the cache, or an earlier ctrain built it"
        if layer.definition.is_base and layer.inputs.base and not self.bases:
            return "it holds an image of others; where its licence allows that: --cache-bases"
        return ""


def _upload(client: RegistryClient, layer: StoredLayer, path: Path, done: Callable[[int], None]) -> str:
    """Bring the partition in a file to a registry."""
    offset, size = partition(path, path.suffix)
    with path.open("rb") as file:

        def read(count: int, at: int) -> bytes:
            return os.pread(file.fileno(), max(0, min(count, size - at)), offset + at)

        return layers.upload(client, layer, read, done)


def _meter(log: Path, total: int, tick: Callable[[], None]) -> Callable[[int], None]:
    """What writes to a log how many bytes of `total` are through, and how fast."""
    started = shown = time.monotonic()

    def at(done: int) -> None:
        nonlocal shown
        tick()
        now = time.monotonic()
        if now - shown >= _LOG_SECONDS:
            shown = now
            rate = format_size(done / (now - started))
            with log.open("a", encoding="utf-8") as file:
                file.write(f"{format_size(done)} of {format_size(total)}, {rate}/s\n")

    return at

"""What each layer of a built image has, for images.lock; and whether a layer that was built again has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.definitions import lock_file
from ctrain_builder.definitions.lock_file import LockedImage, LockedLayer
from ctrain_builder.image import describe
from ctrain_builder.image.state import CachedImage, is_flat
from ctrain_builder.layers.container import Container
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing.reuse import Stack, cached_stack
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ImageTestError

Versions = tuple[dict[str, str], dict[str, str]]  # of Python's packages and of Debian's


def make(cache: Cache, plan: BuildPlan, engine: Engine, mirror: str) -> LockedImage:
    """What the built image has, which was built from this mirror. Raises ImageTestError unless it is in the cache as
    planned, with its layers; BuildError."""
    state = CachedImage(cache, plan.spec, is_flat(plan.spec, False)).state(plan)
    build = f"Run: ctrain build {plan.spec.name}:{plan.spec.tag}"
    if not state.is_as_planned:
        raise ImageTestError(f"image {plan.spec.title} is not built as planned ({state.why})", build)
    missing = [layer.name for layer in plan.layers if not layer.exists]
    if missing:
        raise ImageTestError(f"layer {missing[0]} of image {plan.spec.title} is no longer in the cache", build)
    stack = cached_stack(cache, plan.layers)
    layers: dict[str, LockedLayer] = {}
    below: Versions = ({}, {})
    with cache.work.create() as work:
        for count, (layer, content) in enumerate(zip(plan.layers, stack.contents), 1):
            present = versions(Container(engine, work, lambda: None), stack, count)
            pypi, deb = (lock_file.added(old, new) for old, new in zip(below, present))
            layers[layer.name] = LockedLayer(content.digest, layer.key, pypi, deb)
            below = present
    is_from_mirror = plan.layers[0].is_from_mirror
    return LockedImage(lock_file.snapshot_of(mirror) if is_from_mirror else "", layers)


def versions(container: Container, stack: Stack, count: int) -> Versions:
    """The packages of the lowest `count` layers. Raises BuildError."""
    below = stack.below(count)
    packages: Mapping[str, Any] = describe.examine(container, below.base, below.overlays).packages
    deb: Sequence[Mapping[str, str]] = packages.get("deb", ())
    return dict(packages.get("pypi", {})), {one["package"]: one["version"] for one in deb}


def deviation(container: Container, stack: Stack, locked: LockedLayer, key: str) -> str:
    """Why the topmost of these layers, with this key, is not the locked one; "" if it is: to the byte, or in all its
    versions where the key is another one, which the bytes hold. Raises BuildError."""
    if stack.contents[-1].digest == locked.digest:
        return ""
    other = locked.differences(*versions(container, stack, len(stack.files)))
    return other or ("the same versions, but other bytes" if key == locked.key else "")

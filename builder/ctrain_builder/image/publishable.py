"""Whether the image in a cache may be published: what was planned, built and tested, or what its digest names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Optional

from ctrain_builder.cache import upkeep
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.files.digests import NotAsBuilt
from ctrain_builder.image.state import CachedImage, Stage
from ctrain_builder.plan import build_plan, redistribution
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.errors import ImageTestError, ImageUnusable, RegistryError
from ctrain_runtime.store.manifest import REDISTRIBUTE_LABEL, Manifest

_SHOWN_REASONS = 2  # of each layer


def manifest(cached: CachedImage, plan: BuildPlan, digest: str, command: Callable[[str], str]) -> Optional[Manifest]:
    """The manifest of the image in the cache; None if it is incomplete. `digest`: of the image that is to be published,
    whatever it was made of; or "". `command`: the command line of a verb for this image.

    Raises ImageTestError unless it is the planned one and has passed its tests; of another one, which only its digest
    can name, those tests count that its build has recorded. Raises NotAsBuilt for a corrupt one.
    """
    spec = cached.spec
    state = cached.state(plan)
    if state.stage is Stage.CORRUPT:
        raise NotAsBuilt(f"{cached.path} is corrupt: {state.why}")
    record = state.manifest
    if record is None:
        return None
    made = record.manifest()
    if word := redistribution.declared(plan):  # as it is today: it changes no image
        made = replace(made, labels={**made.labels, REDISTRIBUTE_LABEL: word})
    if state.stage is Stage.TESTED:
        return made
    if state.untestable:
        hint = f"Add a %test to a definition, as in {spec.chain[-1].path}"
        raise ImageTestError(f"image {spec.title} has no tests, which publishing needs", hint)
    if state.is_as_planned or (digest and not made.tested):
        raise ImageTestError(f"image {spec.title} has not passed its tests", f"Run: {command('test')}")
    if digest:
        return made
    if plan.problem and not isinstance(plan.problem, RegistryError):  # no image was built here on an unknown base
        raise plan.problem
    why = _differences(cached.cache, plan)
    what = f"image {spec.title} in the cache is not what `ctrain build` would make now{f' ({why})' if why else ''}"
    hint = f"Run: {command('build')}; or pass the --build-arg of its build, or --digest {made.digest}"
    raise ImageTestError(what, hint)


@contextlib.contextmanager
def removing_damaged(cached: CachedImage, hint: str) -> Iterator[None]:
    """An image that turns out not to be as it was built is removed from the cache, with those of its layers that are
    not. Raises ImageUnusable."""
    try:
        yield
    except NotAsBuilt as error:
        record, _ = cached.recorded()
        removed = upkeep.remove_damaged(cached.cache, cached.path, record.layers if record else ())
        what = f"{error.message}; removed from the cache: {', '.join(removed) or 'nothing, as a build uses it'}"
        raise ImageUnusable(what, hint) from error


def _differences(cache: Cache, plan: BuildPlan) -> str:
    """Why the planned layers are other ones than those that were made last for this image; "" if that is unknown."""
    if plan.problem:
        return plan.problem.message
    made = {layer.name: cache.memory.layer_build(plan.spec, layer.name) for layer in plan.layers}
    recorded = {name: last.inputs for name, last in made.items() if last}
    layers = zip(plan.layers, build_plan.status(plan, recorded.get))
    return "; ".join(f"{layer.name}: {reason}" for layer, status in layers for reason in status.why[:_SHOWN_REASONS])

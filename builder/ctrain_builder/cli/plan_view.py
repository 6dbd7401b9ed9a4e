"""How build plans are shown: text for people, plain data for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

from ctrain_builder.cache import cache_space, estimate
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.files.manifest_writer import seconds_since
from ctrain_builder.image.state import CachedImage, Stage
from ctrain_builder.plan import build_plan, layer_key
from ctrain_builder.plan.build_plan import NEW, OK, STALE, UNKNOWN, BuildPlan, BuildStatus, PlannedLayer
from ctrain_builder.plan.layer_key import LayerInputs
from ctrain_runtime.base.text import format_duration, format_size, pluralize, table
from ctrain_runtime.engines.apptainer import Engine

_SHOWN = 4  # reasons in the table; machines get all


@dataclass(frozen=True)
class ImagePlanStatus:
    """How it stands with an image as a whole and with each of its layers.

    `space` is what building it needs at most, in bytes: for what is kept, and in the meantime. `seconds` is what its
    steps took last; None when that is not known.
    """

    plan: BuildPlan
    image: BuildStatus
    layers: tuple[BuildStatus, ...]
    space: tuple[int, int] = (0, 0)
    seconds: Optional[float] = 0
    built: str = ""  # when the base in the cache was built (UTC), if known

    @property
    def needs_build(self) -> bool:
        return self.image.state != OK


def image_status(
    cache: Cache,
    plan: BuildPlan,
    flat: bool,
    before: Optional[Mapping[str, LayerInputs]] = None,
    engine: Optional[Engine] = None,
) -> ImagePlanStatus:
    """`before` are the inputs by definition to compare with; None: those that the cache remembers. `engine`: that of
    this machine, if it has one."""
    spec = plan.spec
    made = {layer.name: cache.memory.layer_build(spec, layer.name) for layer in plan.layers}
    recorded = {name: last.inputs for name, last in made.items() if last} if before is None else before
    layers = build_plan.status(plan, recorded.get)
    base = plan.layers[0]
    built = cache.layers.built(base.key, base.definition.is_base)
    if plan.problem:
        return ImagePlanStatus(plan, BuildStatus(UNKNOWN), layers)
    state = CachedImage(cache, spec, flat).state(plan, engine)
    if state.stage is Stage.TESTED:
        return ImagePlanStatus(
            plan, BuildStatus(OK), tuple(BuildStatus(OK, layer.why) for layer in layers), built=built
        )
    image = BuildStatus(STALE, (state.why,)) if cache.image(spec, flat).exists() else BuildStatus(NEW)
    space, seconds = estimate.space(cache, plan, flat), estimate.seconds(cache, plan, state.kept)
    return ImagePlanStatus(plan, image, layers, space, seconds, built)


def as_data(cache: Cache, outlooks: Sequence[ImagePlanStatus]) -> dict[str, Any]:
    return {
        "images": [_image(outlook) for outlook in outlooks],
        "needed": _needed(outlooks),
        "free": cache_space.free(cache),
    }


def _image(outlook: ImagePlanStatus) -> dict[str, Any]:
    plan, spec = outlook.plan, outlook.plan.spec
    layers = [
        {
            "definition": layer.name,
            "key": layer.key,
            "exists": layer.exists,
            "epoch": layer.epoch,
            **asdict(status),
            "download": _download(layer),
        }
        for layer, status in zip(plan.layers, outlook.layers)
    ]
    return {
        "name": spec.name,
        "tag": spec.tag,
        "default": spec.is_default,
        "stack": spec.stack,
        "store_name": spec.store_name,
        "arch": plan.arch,
        "bootstrap": "parent" if spec.parent else spec.chain[0].header["bootstrap"],
        "base": plan.layers[0].base,
        "base_built": outlook.built,
        "parent": f"{plan.parent.title}@{plan.parent.digest}" if plan.parent else "",
        "key": plan.keys[-1],
        "epoch": max(layer.epoch for layer in plan.layers),
        "needs_build": outlook.needs_build,
        **asdict(outlook.image),
        "layers": layers,
    }


def _download(layer: PlannedLayer) -> Optional[dict[str, Any]]:
    """What of a layer comes from a registry instead of being built; None: nothing."""
    return (
        {"from": layer.offer.content.origin, "size": layer.offer.content.size}
        if layer.offer and layer.downloads
        else None
    )


def as_text(cache: Cache, outlooks: Sequence[ImagePlanStatus]) -> str:
    rows = [row for outlook in outlooks for row in _rows(outlook)]
    return f"{table(('image', 'layer', 'state', 'why'), rows)}\n{_summary(cache, outlooks)}"


def _rows(outlook: ImagePlanStatus) -> list[tuple[str, str, str, str]]:
    rows = [(layer.name, status.state, _why(status)) for layer, status in zip(outlook.plan.layers, outlook.layers)]
    base = outlook.plan.layers[0].inputs.base
    if outlook.built and outlook.plan.layers[0].is_from_mirror and not outlook.layers[0].why:
        rows[0] = (*rows[0][:2], f"base built {format_duration(seconds_since(outlook.built))} ago")
    parent = outlook.plan.parent
    if base and not outlook.layers[0].why:
        rows[0] = (*rows[0][:2], f"from {parent.title}" if parent else layer_key.short(base))
    if outlook.needs_build and all(status.state == OK for status in outlook.layers):
        rows.append(("(image)", outlook.image.state, _why(outlook.image)))
    return [(outlook.plan.spec.title if number == 0 else "", *row) for number, row in enumerate(rows)]


def _why(status: BuildStatus) -> str:
    more = f"; and {len(status.why) - _SHOWN} more" if len(status.why) > _SHOWN else ""
    return "; ".join(status.why[:_SHOWN]) + more


def _summary(cache: Cache, outlooks: Sequence[ImagePlanStatus]) -> str:
    unknown = sum(outlook.image.state == UNKNOWN for outlook in outlooks)
    stale = [outlook for outlook in outlooks if outlook.image.state in (STALE, NEW)]
    if not outlooks:
        return "nothing to build"
    parts = [f"{pluralize(len(stale), 'image')} to build"] if stale else []
    if unknown:
        parts.append(f"{pluralize(unknown, 'image')} can't be planned")
    if not parts:
        return f"{pluralize(len(outlooks), 'image')} up to date, nothing to build"
    known = [outlook.seconds for outlook in stale if outlook.seconds]
    if stale and len(known) == len(stale):
        parts.append(f"about {format_duration(sum(known))}")
    sizes = {
        layer.key: layer.offer.content.size
        for one in stale
        for layer in one.plan.layers
        if layer.offer and layer.downloads
    }
    if sizes:
        parts.append(f"{format_size(sum(sizes.values()))} to download")
    if stale:
        free = format_size(cache_space.free(cache))
        parts.append(f"needs at most {format_size(_needed(outlooks))}, {free} are free in {cache.root}")
    return "; ".join(parts)


def _needed(outlooks: Sequence[ImagePlanStatus]) -> int:
    """Bytes for all that is kept, and for the largest single step."""
    kept = sum(outlook.space[0] for outlook in outlooks)
    return kept + max((outlook.space[1] for outlook in outlooks), default=0)

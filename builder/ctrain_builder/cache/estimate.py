"""What a build will take: disk space, and time as earlier builds of the same image took it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Optional

from ctrain_builder.cache import cache_space
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.definitions import base_source
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.progress import StepName
from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import RegistryError

# Sizes in bytes of layers that were never made: an NGC base, a Debian base, an upper layer.
_GUESSES = {"docker": 10_000_000_000, "debootstrap": 800_000_000, "localimage": 300_000_000}
_UNPACKED = 3  # a layer's files take about three times the space of the compressed layer
_WORTH_A_NOTE = 1_000_000_000  # bytes; copied in a second or two
IMAGE, TESTS = "image", "tests"
# Seconds on 2 cores near their mirrors, for a machine's first build: of layers, of an image of these, and of its tests.
# As seen on 2026-11-24, the operators and libraries beside other work. Other layers have none: a guess would be worse.
_TYPICAL = {"pytorch-cpu": 112.0, "horovod": 138.0, "deepspeed": 48.0, "deepspeed-ops": 165.0, "libraries": 42.0}
_TYPICAL |= {"train": 1.0, "image": 5.0, "test": 43.0}


def step(kind: str, plan: BuildPlan, kept: int) -> str:
    """The name under which a duration is kept. What a step takes depends on how many of the image's layers are `kept`
    from the image before, so durations are comparable only for the same lowest change."""
    return f"{kind} above {plan.layers[kept].name}" if kept < len(plan.layers) else kind


def seconds(cache: Cache, plan: BuildPlan, kept: int) -> Optional[float]:
    """The time for the layers that are built, for the image and its tests, as the last builds took it; None if unknown.

    `kept` is how many of its layers the image in the cache has already. Downloads of layers are not counted.
    """
    remembered = _remembered(cache, plan, kept)
    return sum(remembered.values()) if remembered else None


def steps(cache: Cache, plan: BuildPlan, kept: int) -> tuple[dict[StepName, float], str]:
    """The seconds of each step that `seconds` counts, and on what they rest; {} if they are unknown."""
    remembered = _remembered(cache, plan, kept)
    if remembered:
        return remembered, "as the last builds took it"
    typical = {due: _TYPICAL.get(due.name if due.kind == "layer" else due.kind, 0.0) for due in _due(plan, kept)}
    known = kept == 0 and all(typical.values())
    return (typical, "by what is typical of 2 cores; each step that ends corrects it") if known else ({}, "")


def _remembered(cache: Cache, plan: BuildPlan, kept: int) -> dict[StepName, float]:
    """What each step took last; {} unless that is known of all."""
    durations = cache.memory.durations(plan.spec)
    took: dict[StepName, float] = {}
    for due in _due(plan, kept):
        last = cache.memory.layer_build(plan.spec, due.name) if due.kind == "layer" else None
        kind = IMAGE if due.kind == "image" else TESTS
        took[due] = (last.seconds if last else 0) if due.kind == "layer" else durations.get(step(kind, plan, kept), 0)
    return took if all(took.values()) else {}


def _due(plan: BuildPlan, kept: int) -> list[StepName]:
    """The steps that a build takes."""
    image = [StepName("image", plan.spec.name)] if kept < len(plan.layers) else []
    built = (layer.name for layer in plan.layers if not layer.exists and not layer.downloads)
    return [*(StepName("layer", name) for name in built), *image, StepName("test")]


def space(cache: Cache, plan: BuildPlan, flat: bool, download: Optional[int] = None) -> tuple[int, int]:
    """Bytes that building the image needs at most: for what is kept, and in the meantime besides.

    `download` is the size of what the base starts from, where it is known.
    """
    missing = present = largest = 0
    for layer in plan.layers:
        try:
            present += cache.layers.path(layer.key, layer.definition.is_base).stat().st_size
        except FileNotFoundError:
            made = cache.memory.layer_build(plan.spec, layer.name)
            copied = layer.inherited or (layer.offer and layer.offer.content)
            source = (
                download if layer.base else base_source.local_size(layer.public) if layer.definition.is_base else None
            )
            known = copied.size if copied else made.size if made else source
            size = known or _GUESSES.get(layer.definition.header["bootstrap"], _GUESSES["docker"])
            missing += size
            # A parent's layers are not unpacked. One that is to be downloaded may have to be built after all.
            largest = max(largest, size if layer.inherited else _UNPACKED * size)
    whole = missing + present
    kept = missing + whole
    while_layers_are_built = missing + largest  # the image comes later
    while_image_is_made = kept + (whole if flat else 0)  # a flat one is packed, then copied into its file
    return kept, max(while_layers_are_built, while_image_is_made) - kept


def copy_note(cache: Cache, base: Path, in_use: bool) -> str:
    """What a person should know before the base of an image is copied; "" if that costs little. `in_use`: an image with
    this base exists, but cannot be changed in place."""
    size = base.stat().st_size
    if size < _WORTH_A_NOTE or cache_space.shares_blocks(cache, base):
        return ""
    why = "the image of the last build is in use" if in_use else "there is no image with this base"
    return f"copying {format_size(size)}: {why}, and {cache.root} cannot share blocks between files"


def download(plan: BuildPlan) -> Optional[int]:
    """The compressed size in bytes of the upstream image that is to be downloaded; None where that is not known."""
    base = plan.layers[0]
    if not base.base or base.exists or base.downloads:
        return None
    from ctrain_runtime.registry.client import RegistryClient  # which loads much that other builds don't need

    with contextlib.suppress(RegistryError):  # the download itself says what is wrong
        return RegistryClient().size(base.base, plan.arch)
    return None

"""What a build will take: disk space, and time as earlier builds of the same image took it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Optional

from ctrain_builder.build_cache import Cache
from ctrain_builder.build_plan import BuildPlan
from ctrain_runtime.errors import RegistryError
from ctrain_runtime.text import format_size

# Sizes in bytes of layers that were never made: an NGC base, a Debian base, an upper layer.
_GUESSES = {"docker": 10_000_000_000, "debootstrap": 800_000_000, "localimage": 300_000_000}
_UNPACKED = 3  # a layer's files take about three times the space of the compressed layer
_WORTH_A_NOTE = 1_000_000_000  # bytes; copied in a second or two
IMAGE, TESTS = "image", "tests"


def step(kind: str, plan: BuildPlan, kept: int) -> str:
    """The name under which a duration is kept. What a step takes depends on how many of the image's layers are `kept`
    from the image before, so durations are comparable only for the same lowest change."""
    return f"{kind} above {plan.layers[kept].name}" if kept < len(plan.layers) else kind


def seconds(cache: Cache, plan: BuildPlan, kept: int) -> Optional[float]:
    """The time for the layers that are missing, for the image and its tests; None if unknown.

    `kept` is how many of its layers the image in the cache has already.
    """
    made = [cache.made(plan.spec, layer.name) for layer in plan.layers if not layer.exists]
    durations = cache.durations(plan.spec)
    steps = [IMAGE, TESTS] if kept < len(plan.layers) else [TESTS]
    found = [durations.get(step(kind, plan, kept)) for kind in steps]
    found += [last.seconds if last else None for last in made]
    known = [time for time in found if time]
    return sum(known) if len(known) == len(found) else None


def space(cache: Cache, plan: BuildPlan, flat: bool, download: Optional[int] = None) -> tuple[int, int]:
    """Bytes that building the image needs at most: for what is kept, and in the meantime besides.

    `download` is the size of what the base starts from, where it is known.
    """
    missing = there = largest = 0
    for part in plan.layers:
        try:
            there += cache.layer(part.key, part.definition.is_base).stat().st_size
        except FileNotFoundError:
            made = cache.made(plan.spec, part.name)
            known = part.part.size if part.part else made.size if made else download if part.base else None
            size = known or _GUESSES.get(part.definition.header["bootstrap"], _GUESSES["docker"])
            missing += size
            largest = max(largest, size if part.part else _UNPACKED * size)  # a parent's layers are not unpacked
    whole = missing + there
    kept = missing + whole
    while_layers_are_built = missing + largest  # the image comes later
    while_image_is_made = kept + (whole if flat else 0)  # a flat one is packed, then copied into its file
    return kept, max(while_layers_are_built, while_image_is_made) - kept


def copy_note(cache: Cache, base: Path, in_use: bool) -> str:
    """What a person should know before the base of an image is copied; "" if that costs little. `in_use`: an image with
    this base exists, but cannot be changed in place."""
    size = base.stat().st_size
    if size < _WORTH_A_NOTE or cache.shares_blocks(base):
        return ""
    why = "the image of the last build is in use" if in_use else "there is no image with this base"
    return f"copying {format_size(size)}: {why}, and {cache.root} cannot share blocks between files"


def download(plan: BuildPlan) -> Optional[int]:
    """The compressed size in bytes of the upstream image that is to be downloaded; None where that is not known."""
    base = plan.layers[0]
    if not base.base or base.exists:
        return None
    from ctrain_runtime.registry.client import RegistryClient  # which loads much that other builds don't need

    with contextlib.suppress(RegistryError):  # the download itself says what is wrong
        return RegistryClient().size(base.base, plan.arch)
    return None

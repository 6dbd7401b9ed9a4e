"""Which layers are to be built again although they exist: on demand, by age, or because of who brought them here."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Optional

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.files import manifest_writer
from ctrain_builder.plan.build_plan import PlannedLayer
from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import UsageError


def wanted(
    specs: Sequence[ImageSpec],
    cache: Cache,
    layer: Optional[str],
    max_age: Optional[float],
    sources: Optional[Collection[str]],
) -> Callable[[PlannedLayer], tuple[str, str]]:
    """The time before which a layer must not have been built, and why: by --rebuild `layer` ("" for all) and
    --base-max-age (days). In a cache of a group, a layer from a registry that only another member has named is built
    again, too; `sources`: those that this one has named, None where the images themselves are what counts."""
    now, names = time.time(), {definition.name for spec in specs for definition in spec.chain}
    if layer and layer not in names:
        raise UsageError(f"--rebuild: no layer {layer!r} in these images", f"Known: {', '.join(sorted(names))}")

    def find(planned: PlannedLayer) -> tuple[str, str]:
        if layer is not None and layer in ("", planned.name):
            return manifest_writer.utc(now), "--rebuild"
        if max_age is not None and planned.is_from_mirror:
            return manifest_writer.utc(now - max_age * 86400), f"older than {max_age:g} days"
        if sources is not None and (who := _downloaded_by_other(cache, planned, sources)):
            return manifest_writer.utc(now), f"downloaded by {who}"
        return "", ""

    return find


def _downloaded_by_other(cache: Cache, planned: PlannedLayer, sources: Collection[str]) -> str:
    """Who, and from where, has downloaded a layer that is none of this user's, root's or the `sources`'; or ""."""
    content = cache.layers.known_content(planned.key, planned.definition.is_base)
    if content and content.origin and content.origin not in sources:
        with contextlib.suppress(FileNotFoundError):
            owner = cache.layers.path(planned.key, planned.definition.is_base).stat().st_uid
            if owner not in (0, os.geteuid()):
                return f"{user_name(owner)} from {content.origin}"
    return ""

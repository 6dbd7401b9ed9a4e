"""The licences of an image: that of what its base was made from stays visible below those of the layers on it.

In an image's own labels.json there is one label for all. There, an upstream image's stands before that of definitions,
and a definition that is built on another one adds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ctrain_builder.build_plan import BuildPlan
from ctrain_builder.layers import metadata
from ctrain_runtime.store.manifest import LICENSES_LABEL, PACKAGE_LICENSES_LABEL, layer_licenses

_NONE_NAMED = "not named"


def by_layer(plan: BuildPlan, base: Mapping[str, str]) -> dict[str, str]:
    """The licence of each layer that has one, from the base upwards. `base` are the labels of the lowest layer's file,
    among which are those of an upstream image."""
    found: dict[str, str] = {}
    for number, layer in enumerate(plan.layers):
        told = [metadata.shown(layer).labels.get(LICENSES_LABEL, "")]
        if number == 0 and not plan.parent:
            told.insert(0, base.get(LICENSES_LABEL, ""))
        if licence := combined(told):
            found[layer.name] = licence
    return {**_of_parent(plan), **found}


def combined(licenses: Iterable[str]) -> str:
    """One expression of SPDX for what is under all of these licences; one that is named twice counts once."""
    distinct = [licence for licence in dict.fromkeys(licenses) if licence]
    if len(distinct) < 2:
        return "".join(distinct)
    return " AND ".join(f"({licence})" if " OR " in licence else licence for licence in distinct)


def as_label(licenses: Mapping[str, str]) -> str:
    return "; ".join(f"{layer}: {licence}" for layer, licence in licenses.items())


def of_packages(packages: Mapping[str, Any]) -> dict[str, str]:
    """The label with the licences of an image's packages and how many are under each, the most frequent first; {} if
    nothing is known of them. `packages` is what inside/packages.py finds."""
    named = [names for kind in packages.get("licenses", {}).values() for names in kind.values()]
    counts = Counter(name for names in named for name in names or [_NONE_NAMED])
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {PACKAGE_LICENSES_LABEL: "; ".join(f"{name} {count}" for name, count in most)} if most else {}


def _of_parent(plan: BuildPlan) -> dict[str, str]:
    """Those of the parent image: by layer, as its manifest tells them, else as one."""
    image = plan.parent.image if plan.parent else None
    if not plan.parent or not image:
        return {}
    whole = image.manifest.labels.get(LICENSES_LABEL, "")
    return layer_licenses(image.manifest.labels) or ({plan.parent.title: whole} if whole else {})

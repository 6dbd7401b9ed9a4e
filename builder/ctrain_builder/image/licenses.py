"""The licences of an image: that of what its base was made from stays visible below those of the layers on it.

In an image's own labels.json there is one label for all. There, an upstream image's stands before that of definitions,
and a definition that is built on another one adds nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.store.manifest import (
    LICENSES_LABEL,
    PACKAGE_LICENSES_LABEL,
    combined_licenses,
    layer_licenses,
    stated_licenses,
)

_NONE_NAMED = "not named"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.]+")
_LONGEST_LABEL = 1000


def by_layer(plan: BuildPlan, base: Mapping[str, str]) -> dict[str, str]:
    """The licence of each layer that has one, from the base upwards. `base` are the labels of the lowest layer's file,
    among which are those of an upstream image."""
    own: dict[str, str] = {}
    for number, layer in enumerate(plan.layers):
        stated = [layer.public.labels.get(LICENSES_LABEL, "")]
        if number == 0 and not plan.parent:
            stated.insert(0, stated_licenses(base))
        if licence := combined_licenses(stated):
            own[layer.name] = licence
    return {**_of_parent(plan), **own}


def as_label(licenses: Mapping[str, str]) -> str:
    return "; ".join(f"{layer}: {licence}" for layer, licence in licenses.items())


def of_packages(labels: Mapping[str, str], packages: Mapping[str, Any]) -> dict[str, str]:
    """The labels that tell the licences of an image's packages; {} if nothing is known of them. One counts how many are
    under each, the most frequent first; in the other they stand behind those that `labels` name, as SPDX writes them.

    `packages` is what inside/packages.py finds.
    """
    named = [names for kind in packages.get("licenses", {}).values() for names in kind.values()]
    counts = Counter(name for names in named for name in names or [_NONE_NAMED])
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if not most:
        return {}
    return {
        PACKAGE_LICENSES_LABEL: "; ".join(f"{name} {count}" for name, count in most),
        LICENSES_LABEL: _expression(labels.get(LICENSES_LABEL, ""), [name for name, _ in most]),
    }


def _expression(stated: str, names: Sequence[str]) -> str:
    """`stated` and as many of `names` as the label holds; how many others there are is its last word."""
    as_spdx = list(dict.fromkeys(_as_spdx(name) for name in names))
    fitting = len(as_spdx)
    while fitting and len(combined_licenses([stated, *as_spdx[:fitting]])) > _LONGEST_LABEL:
        fitting -= 1
    others = [f"LicenseRef-{len(as_spdx) - fitting}-others"] if fitting < len(as_spdx) else []
    return combined_licenses([stated, *as_spdx[:fitting], *others])


def _as_spdx(name: str) -> str:
    """A licence by its name in SPDX's list, or an expression of such; any other is LicenseRef-NAME, as which one its
    author meant is not ours to say."""
    from cyclonedx.spdx import fixup_id, is_expression

    if listed := fixup_id(name):
        return listed
    operands = filter(None, re.split(r"\s+(?:AND|OR)\s+|\s*[()]\s*", name))
    if is_expression(name) and all(fixup_id(each.partition(" WITH ")[0]) for each in operands):  # it knows GPL, too
        return name
    letters = _NOT_IN_A_NAME.sub("-", name.replace("+", "-plus")).strip("-")
    return f"LicenseRef-{letters or _NOT_IN_A_NAME.sub('-', _NONE_NAMED)}"


def _of_parent(plan: BuildPlan) -> dict[str, str]:
    """Those of the parent image: by layer, as its manifest tells them, else as one."""
    image = plan.parent.image if plan.parent else None
    if not plan.parent or not image:
        return {}
    whole = stated_licenses(image.manifest.labels)
    return layer_licenses(image.manifest.labels) or ({plan.parent.title: whole} if whole else {})

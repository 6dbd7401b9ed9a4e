"""May an image be passed on, as to a registry? Decided by what images.yaml says, else by the licences that are known.

No legal advice: docs/licences.md.
"""

from __future__ import annotations

import re

from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.store.manifest import REDISTRIBUTE_LABEL, Manifest, layer_licenses, stated_licenses

YES, NO, UNKNOWN = "yes", "no", "unknown"
# LicenseRef- begins SPDX's name of a licence that is on no list, as NVIDIA's of its containers; others write free text.
_LISTED = r"\(*(?!LicenseRef-)[A-Za-z0-9.+-]+\)*"
_ALL_LISTED = re.compile(rf"({_LISTED}( (AND|OR|WITH) {_LISTED})*)?")


def declared(plan: BuildPlan) -> str:
    """The value of REDISTRIBUTE_LABEL: what images.yaml says of an image, and what holds for its parent; "" if nothing
    does. A parent that may not be passed on stays so in all that is built on it."""
    inherited = _of_parent(plan)
    if inherited == NO or plan.spec.redistribute is None:
        return inherited
    return YES if plan.spec.redistribute else NO


def reason_to_keep(manifest: Manifest) -> str:
    """Why an image is not passed on; "" if it may be."""
    word = manifest.labels.get(REDISTRIBUTE_LABEL, "")
    if word == NO:
        return "images.yaml says `redistribute: no` of it or its parent"
    if word == YES:
        return ""
    if manifest.adopted or word == UNKNOWN:
        return "ctrain did not build all of it, and does not know its licences"
    licences = stated_licenses(manifest.labels)
    if not _ALL_LISTED.fullmatch(licences):
        return f"not all of its licences are on SPDX's list: {licences}"
    if manifest.base.digest and manifest.layers[0].definition not in layer_licenses(manifest.labels):
        return f"no licence is known of its base {manifest.base.reference}"
    return ""


def _of_parent(plan: BuildPlan) -> str:
    if not plan.parent:
        return ""
    image = plan.parent.image
    if not image or image.manifest.adopted:
        return UNKNOWN
    word = image.manifest.labels.get(REDISTRIBUTE_LABEL, "")
    return "" if word == YES else word

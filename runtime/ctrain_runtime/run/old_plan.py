"""Reads the plans of ctrains that kept all of a plan's keys side by side, so that their runs stay readable."""

from __future__ import annotations

import dataclasses
from typing import Any

from ctrain_runtime.plan.model import Checks, Environment, Mounts, Placement, PlannedImage, Program, Staging
from ctrain_runtime.plan.size import JobSize

GROUPS = {
    "image": PlannedImage,
    "program": Program,
    "size": JobSize,
    "placement": Placement,
    "environment": Environment,
    "mounts": Mounts,
    "staging": Staging,
    "checks": Checks,
}
RENAMED = {
    "environment": "variables",
    "mounts": "paths",
    "staging": "directory",
    "stages_image": "copies",
    "staging_reason": "reason",
}
DERIVED = ("tasks", "ranks_per_task")  # from launcher and size


def group(data: dict[str, Any]) -> dict[str, Any]:
    """The launch of an old plan.json with its plan in groups; what is damaged stays for whoever loads it."""
    plan = data.get("plan")
    if not isinstance(plan, dict) or not isinstance(plan.get("image"), dict):
        return data
    places = {field.name: group for group, kind in GROUPS.items() for field in dataclasses.fields(kind)}
    grouped: dict[str, Any] = {**{name: {} for name in GROUPS}, "image": dict(plan["image"])}
    for key, value in plan.items():
        name = RENAMED.get(key, key)
        if name in places:
            grouped[places[name]][name] = value
        elif key != "image" and key not in DERIVED:
            grouped[key] = value
    return {**data, "plan": grouped}

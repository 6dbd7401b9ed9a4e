"""Which image a run gets, and the user layers over it: pure, as all of the plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import EngineError, UsageError
from ctrain_runtime.facts import Facts
from ctrain_runtime.image import Image
from ctrain_runtime.plan.model import Options, PlannedImage, PlannedUserLayer
from ctrain_runtime.user_layer import UserLayer


def choose_image(image: Image, flat: Optional[Image], options: Options, facts: Facts) -> PlannedImage:
    """The image that was asked for, or `flat` in its place. Raises EngineError when neither would show its layers."""
    used = _mountable(image, flat, options, facts) if facts.ignores_layers else image
    return PlannedImage(
        used.manifest.name,
        used.manifest.version,
        image.channel,
        used.manifest.digest,
        str(used.path),
        image.marker,
        bool(used.manifest.software.get("cuda", "")),
        "" if used is image else image.manifest.version,
        str(used.exec_path) if used.overlay_args else "",
    )


def _mountable(image: Image, flat: Optional[Image], options: Options, facts: Facts) -> Image:
    """The image for an engine that leaves out all layers without a word. Raises EngineError."""
    name = f"image {image.manifest.name} {image.manifest.version}"
    if options.layers:
        raise EngineError(
            f"{facts.engine.name} here mounts no layers (is overlay off in its configuration?)",
            "Ask the admins to set `enable overlay`, or run without user layers",
        )
    if flat is None:
        raise EngineError(
            f"{facts.engine.name} here ignores the layers of {name}, and there is no flattened one in its place",
            "An admin can make it: ctrain build IMAGE --flatten, then ctrain publish IMAGE --flatten",
        )
    return flat


def plan_user_layers(image: Image, found: tuple[UserLayer, ...]) -> tuple[PlannedUserLayer, ...]:
    """The user layers, each of which fits this one image. Raises UsageError."""
    manifest = image.manifest
    seen: dict[str, tuple[str, Path]] = {}
    for layer in found:
        parent = layer.description.parent
        if parent.digest != manifest.digest:
            reference = f"{manifest.name}:{manifest.version}" if manifest.release else str(image.path)
            rebuild = ("ctrain", "layer", "build", layer.description.source, "--on", reference, "-o", str(layer.path))
            raise UsageError(
                f"layer {layer.path} was built on {parent.name} {parent.version} ({parent.digest[:19]}),"
                f" the image is {manifest.name} {manifest.version} ({manifest.digest[:19]})",
                f"Build it again: {shlex.join(rebuild)}",
            )
        for name, version in layer.description.packages.items():
            other, path = seen.setdefault(name, (version, layer.path))
            if other != version:
                raise UsageError(
                    f"layer {path} has {name} {other}, layer {layer.path} has {version}", "Build one layer of both"
                )
    return tuple(
        PlannedUserLayer(str(layer.path), layer.digest, layer.description.key, layer.description.packages)
        for layer in found
    )

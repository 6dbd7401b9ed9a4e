"""Chooses the image of a run, and checks the user layers on top of it. Pure, like all of the plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Optional

from ctrain_runtime.base.digest import short
from ctrain_runtime.cluster.facts import Facts
from ctrain_runtime.errors import EngineError, UsageError
from ctrain_runtime.gpus import Maker
from ctrain_runtime.images.image import Image
from ctrain_runtime.images.user_layer import UserLayer
from ctrain_runtime.plan.admission import native_driver
from ctrain_runtime.plan.model import Inputs, PlannedImage, PlannedUserLayer
from ctrain_runtime.store import lease

_WHY = {  # an engine mounts no layers, by its kind
    "apptainer": "overlay is off",
    "singularity": "overlay or kernel squashfs is off, it is not set-uid root, or its user is root",
}


def choose_image(
    image: Image, inputs: Inputs, facts: Facts, run_directory: Path, *, gpus: Optional[Maker]
) -> PlannedImage:
    """The plan's image: `image`, or `inputs.flat` if the engine does not mount layers, with the user layers.

    Raises EngineError if neither works, UsageError if a layer was built on another image, or two have different
    versions.

    An image that ctrain did not build, and of which nobody knows for whose GPUs it is, gets those that the run uses
    (None: no GPUs): without them it would compute on CPUs and say nothing.
    """
    chosen = _mountable(image, inputs, facts) if facts.ignores_layers else image
    software = chosen.manifest.software
    # Not all builds of torch for Intel's GPUs have torch.version.xpu.
    is_known = bool({"cuda", "rocm", "xpu"} & software.keys()) or software.get("torch", "").endswith(("+cpu", "+xpu"))
    unknown = not image.manifest.layers and not is_known
    return PlannedImage(
        name=chosen.manifest.name,
        version=chosen.manifest.version,
        channel=image.channel,
        digest=chosen.manifest.digest,
        path=str(chosen.path),
        marker=image.marker,
        cuda="cuda" in software or (unknown and gpus == "nvidia"),
        rocm="rocm" in software or (unknown and gpus == "amd"),
        size=chosen.manifest.size,
        native_driver=native_driver(chosen.manifest),
        instead_of="" if chosen is image else image.manifest.version,
        engine=facts.engine,
        layers=_plan_user_layers(image, inputs.layers),
        lease=lease.lease_path(facts.lease_dir, str(chosen.path), run_directory),
    )


def _mountable(image: Image, inputs: Inputs, facts: Facts) -> Image:
    """The image for an engine that silently ignores layers. Raises EngineError without one."""
    name = f"image {image.manifest.name} {image.manifest.version}"
    here = f"here ({_WHY[facts.engine.name]})"
    if inputs.layers:
        raise EngineError(
            f"{facts.engine.name} does not mount user layers {here}",
            "Ask the administrators to change that, or run without user layers",
        )
    if inputs.flat is None:
        raise EngineError(
            f"{facts.engine.name} does not mount overlay partitions {here}, and no flat version of {name} is published",
            "Ask the administrators to run: ctrain build IMAGE --flatten, then ctrain publish IMAGE --flatten",
        )
    return inputs.flat


def _plan_user_layers(image: Image, layers: tuple[UserLayer, ...]) -> tuple[PlannedUserLayer, ...]:
    manifest = image.manifest
    seen: dict[str, tuple[str, Path]] = {}
    for layer in layers:
        parent = layer.description.parent
        if parent.digest != manifest.digest:
            reference = manifest.reference if manifest.release else str(image.path)
            rebuild = ("ctrain", "layer", "build", layer.description.source, "--on", reference, "-o", str(layer.path))
            raise UsageError(
                f"layer {layer.path} was built on {parent.name} {parent.version} ({short(parent.digest)}),"
                f" but the image is {manifest.name} {manifest.version} ({short(manifest.digest)})",
                f"Rebuild it with: {shlex.join(rebuild)}",
            )
        for name, version in layer.description.packages.items():
            other, path = seen.setdefault(name, (version, layer.path))
            if other != version:
                raise UsageError(
                    f"layer {path} has {name} {other}, layer {layer.path} has {version}", "Build one layer with both"
                )
    return tuple(
        PlannedUserLayer(str(layer.path), layer.digest, layer.description.key, layer.description.packages)
        for layer in layers
    )

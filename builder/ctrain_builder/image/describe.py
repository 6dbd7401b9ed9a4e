"""Describes a finished image: its labels and its manifest."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ctrain_builder.definitions import ngc
from ctrain_builder.files.digests import regions_digest
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.files.manifest_writer import utc_now
from ctrain_builder.image import licenses
from ctrain_builder.layers.container import Container
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing.record import BuildRecord
from ctrain_builder.testing.tests import run_probe
from ctrain_runtime.base import command, config
from ctrain_runtime.base.version import ctrain_version
from ctrain_runtime.errors import BuildError, ConfigError
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import (
    BASE_BUILT_LABEL,
    CPU_LABEL,
    LAYER_LICENSES_LABEL,
    LICENSES_LABEL,
    PARENT_LABEL,
    Base,
    Layer,
    Requires,
    combined_licenses,
)

EXAMINE = "examine.py"
_OCI = "org.opencontainers.image."


@dataclass(frozen=True)
class Content:
    """What is in an image, as it tells itself: versions of its software, and its packages (inside/packages.py)."""

    software: dict[str, str] = field(default_factory=dict)
    packages: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _DebianPackage:
    package: str
    version: str
    architecture: str


@dataclass(frozen=True)
class Packages:
    """What inside/packages.py finds."""

    system: dict[str, str] = field(default_factory=dict)
    deb: tuple[_DebianPackage, ...] = ()
    pypi: dict[str, str] = field(default_factory=dict)
    licenses: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Answer:
    """What inside/examine.py prints."""

    software: dict[str, str] = field(default_factory=dict)
    packages: Packages = field(default_factory=Packages)


def examine(container: Container, image: Path, overlays: Sequence[str] = ()) -> Content:
    """Ask the image, with layers over it. Raises BuildError."""
    answer = run_probe(container, image, EXAMINE, overlays)
    try:
        config.load(_Answer, answer, f"image {image}")
    except ConfigError as error:  # its python3 is its own
        raise BuildError(error.message, "Does its python3 work?") from error
    return Content(**answer)


def labels(plan: BuildPlan, flat: bool, license_of: Mapping[str, str], packages: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an image as a whole; those of its layers lie below them. The same layers give the same labels.

    `license_of` has the licences of its layers, `packages` what inside/packages.py finds.
    """
    spec, base = plan.spec, _origin(plan)
    parent = plan.parent
    every = {
        f"{_OCI}title": spec.store_name,
        f"{_OCI}version": f"{spec.tag}-{spec.stack}",
        f"{_OCI}description": "; ".join(_of_layers(plan, f"{_OCI}description")),
        LICENSES_LABEL: combined_licenses(license_of.values()),
        LAYER_LICENSES_LABEL: licenses.as_label(license_of),
        f"{_OCI}created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(layer.epoch for layer in plan.layers))),
        f"{_OCI}revision": _revision(spec.source_root) or "",
        f"{_OCI}base.name": base.reference if base.digest else "",
        PARENT_LABEL: f"{parent.title}@{parent.digest}" if parent else "",
        f"{_OCI}base.digest": base.digest,
        "org.ctrain.layers": " ".join(layer.name for layer in plan.layers),
        "org.ctrain.key": plan.keys[-1],
        "org.ctrain.flat": "yes" if flat else "no",
        CPU_LABEL: _cpu(plan),
    }
    own = {name: value for name, value in every.items() if value}
    return {**own, **licenses.of_packages(own, packages)}


def _cpu(plan: BuildPlan) -> str:
    """The CPU that the uppermost layer with an argument CPU_ARCH is compiled for, else the parent; "" if unknown."""
    inherited = plan.parent.image.manifest.labels.get(CPU_LABEL, "") if plan.parent and plan.parent.image else ""
    own = (layer.inputs.arguments.get("CPU_ARCH", "") for layer in reversed(plan.layers))
    return next(filter(None, own), inherited) if plan.arch == "amd64" else ""


def _of_layers(plan: BuildPlan, label: str) -> list[str]:
    """What the parent and the definitions say by a label, from the base upwards; what two of them say counts once."""
    inherited = plan.parent.image.manifest.labels.get(label, "") if plan.parent and plan.parent.image else ""
    values = (inherited, *(layer.public.labels.get(label, "") for layer in plan.layers))
    return [value for value in dict.fromkeys(values) if value]


def _origin(plan: BuildPlan) -> Base:
    """What the image was made from: its parent, or what its base starts from."""
    if plan.parent:
        return Base(plan.parent.title, plan.parent.digest)
    header = plan.layers[0].public.header
    reference = header.get("from") or f"{header['bootstrap']} {header.get('osversion', '')}".strip()
    return Base(reference, plan.layers[0].base.partition("@")[2])


def _base(plan: BuildPlan) -> Base:
    """What the lowest layer was made from."""
    return plan.parent.image.manifest.base if plan.parent and plan.parent.image else _origin(plan)


def manifest(
    container: Container, plan: BuildPlan, image: Path, contents: Sequence[LayerContent], content: Content
) -> BuildRecord:
    """The record of an image that was not tested so far; `contents` are those of its layers."""
    layers = tuple(
        Layer(planned.name, planned.key, layer.size, layer.digest) for planned, layer in zip(plan.layers, contents)
    )
    software = dict(content.software)
    arch = software.pop("arch", "")
    return BuildRecord(
        name=plan.spec.store_name,
        tag=plan.spec.tag,
        stack=plan.spec.stack,
        digest=regions_digest(image, layers),
        size=image.stat().st_size,
        arch=plan.arch,
        built=utc_now(),
        layers=layers,
        software=software,
        tests=(),
        tools=_tools(container),
        revision=_revision(plan.spec.source_root),
        labels={**inspect_labels(container, image), **_base_built(plan, contents)},
        base=_base(plan),
        flat=len(sif.partitions(image)) == 1 < len(plan.layers),
        requires=_requires(plan, arch) if "cuda" in software else Requires(),
    )


def _base_built(plan: BuildPlan, contents: Sequence[LayerContent]) -> dict[str, str]:
    """When a base from package mirrors was built: its packages are as old."""
    built = contents[0].built if plan.layers[0].is_from_mirror else ""
    return {BASE_BUILT_LABEL: built} if built else {}


def _requires(plan: BuildPlan, arch: str) -> Requires:
    """What an image with CUDA, compiled for the GPUs `arch`, needs of a node: known of its parent, or of the tags in
    ngc.yaml."""
    if plan.parent:
        return plan.parent.image.manifest.requires if plan.parent.image else Requires(arch=tuple(arch.split()))
    directory = plan.layers[0].definition.path.parents[1]
    if not (directory / ngc.FILE).is_file():  # somebody else's definitions
        return Requires(arch=tuple(arch.split()))
    table = ngc.read(directory)
    release = table.releases.get(plan.spec.tag, ngc.Release())
    return Requires(release.needs_driver.strip("-~"), release.older_drivers, table.gpus(arch), tuple(arch.split()))


def inspect_labels(container: Container, image: Path) -> dict[str, str]:
    """The labels of an image, as `inspect` tells them."""
    answer: dict[str, Any] = json.loads(
        container.output([container.engine.path, "inspect", "--json", "--labels", str(image)])
    )
    labels: dict[str, str] = answer["data"]["attributes"]["labels"]
    return labels


def _tools(container: Container) -> dict[str, str]:
    """The versions of what made the image."""
    tools = {container.engine.name: container.engine.version}
    if own := ctrain_version():
        tools["ctrain"] = own
    banner = command.run(["mksquashfs", "-version"], check=False).stdout
    number = re.search(r"version (\S+)", banner)
    return {**tools, "mksquashfs": number[1]} if number else tools


def _revision(directory: Path) -> Optional[str]:
    """The git commit of the definitions, with "-dirty" when they were changed since; None outside a repository."""
    git = command.which("git")
    if not git:
        return None
    argv = [git, "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    completed = command.run(argv, check=False)
    return completed.stdout.strip() if completed.code == 0 else None

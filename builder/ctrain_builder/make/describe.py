"""Describes a finished image: its manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Optional

from ctrain_builder.make.container import Container
from ctrain_builder.plan import BuildPlan
from ctrain_builder.record import utc_now
from ctrain_runtime import command
from ctrain_runtime.errors import BuildError, CtrainError
from ctrain_runtime.store import Layer, Manifest, TestResult

_VERSIONS = Path(__file__).parent / "inside" / "versions.py"
_CHUNK = 1 << 20


def software(container: Container, image: Path) -> dict[str, str]:
    """The versions of the software in an image, asked in the image itself."""
    argv = container.argv("exec", image, binds=[f"{_VERSIONS.parent}:/mnt:ro"])
    try:
        text = container.output([*argv, "python3", f"/mnt/{_VERSIONS.name}"])
    except CtrainError as error:
        raise BuildError(f"image {image} can't be examined: {error}", "It needs python3") from error
    found: dict[str, str] = json.loads(text.strip().splitlines()[-1])
    return found


def manifest(
    container: Container, plan: BuildPlan, image: Path, files: Sequence[Path], tests: Sequence[TestResult]
) -> Manifest:
    """The manifest of `image`, which the layer files `files` make up."""
    layers = (Layer(layer.name, layer.key, file.stat().st_size) for layer, file in zip(plan.layers, files))
    return Manifest(
        name=plan.spec.store_name,
        tag=plan.spec.tag,
        stack=plan.spec.stack,
        digest=digest(image),
        size=image.stat().st_size,
        arch=plan.arch,
        built=utc_now(),
        layers=tuple(layers),
        software=software(container, image),
        tests=tuple(tests),
        tools=_tools(container),
        revision=_revision(plan.spec.source_root),
        labels=_labels(container, image),
    )


def digest(path: Path) -> str:
    """As in sha256:9f2c..."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
    return f"sha256:{sha.hexdigest()}"


def _labels(container: Container, image: Path) -> dict[str, str]:
    """The labels of an image, as `inspect` tells them."""
    said: dict[str, Any] = json.loads(
        container.output([container.engine.path, "inspect", "--json", "--labels", str(image)])
    )
    found: dict[str, str] = said["data"]["attributes"]["labels"]
    return found


def _tools(container: Container) -> dict[str, str]:
    """The versions of what made the image."""
    found = {container.engine.name: container.engine.version}
    with contextlib.suppress(PackageNotFoundError):  # run from a checkout, not installed
        found["ctrain"] = version("ctrain")
    said = command.run(["mksquashfs", "-version"], check=False).stdout
    number = re.search(r"version (\S+)", said)
    return {**found, "mksquashfs": number[1]} if number else found


def _revision(folder: Path) -> Optional[str]:
    """The git commit of the definitions, with "-dirty" when they were changed since; None outside a repository."""
    git = command.find("git")
    if not git:
        return None
    asked = [git, "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    said = command.run(asked, check=False)
    return said.stdout.strip() if said.code == 0 else None

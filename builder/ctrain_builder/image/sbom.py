"""The package list (SBOM) of an image, in CycloneDX: what dpkg and Python's metadata say, kept in the image's file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctrain_builder.build_plan import BuildPlan
from ctrain_builder.layers.container import Container
from ctrain_runtime.errors import BuildError

if TYPE_CHECKING:  # an optional dependency, imported when an image is built
    from cyclonedx.model.component import Component

_NAME = "sbom.cdx.json"
_OBJECT = ("--datatype", "9", "--sbomformat", "cyclonedx-json", "--groupid", "1", "--filename", _NAME)


def require() -> None:
    """Raise BuildError, before a long build, if the library that writes package lists is not there."""
    if not find_spec("cyclonedx"):
        what = "Python package cyclonedx-python-lib, needed for package lists, is not installed"
        raise BuildError(what, "Run: pip install cyclonedx-python-lib")


def attach(container: Container, plan: BuildPlan, image: Path, packages: Mapping[str, Any], log: Path) -> None:
    """Put the list of an image's packages into its file. Raises BuildError."""
    (container.work / _NAME).write_text(document(plan, packages), encoding="utf-8")
    argv = [container.engine.path, "sif", "add", *_OBJECT, str(image), str(container.work / _NAME)]
    container.require(argv, log, f"cannot add the package list to {image}")


def document(plan: BuildPlan, packages: Mapping[str, Any]) -> str:
    """The CycloneDX document for what inside/examine.py found ({} without Python); the same for equal images."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    spec = plan.spec
    version = f"{spec.tag}-{spec.stack}"
    image = Component(name=spec.store_name, version=version, type=ComponentType.CONTAINER, bom_ref="image")
    time = datetime.fromtimestamp(max(layer.epoch for layer in plan.layers), timezone.utc)
    content = json.dumps([plan.keys, packages], sort_keys=True)
    components = list(_components(packages))
    bom = Bom(
        components=components,
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, content),
        metadata=BomMetaData(component=image, timestamp=time),
    )
    bom.register_dependency(image, components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _components(packages: Mapping[str, Any]) -> Iterator[Component]:
    from cyclonedx.model.component import Component
    from packageurl import PackageURL

    system = packages.get("system", {})
    for name, version in packages.get("pypi", {}).items():
        url = PackageURL("pypi", name=name, version=version)
        yield Component(name=name, version=version, purl=url, bom_ref=str(url))
    for package in packages.get("deb", ()):
        name, version = package["package"], package["version"]
        facts = {"arch": package["architecture"], "distro": system.get("VERSION_CODENAME", "")}
        url = PackageURL("deb", system.get("ID", "debian"), name, version, facts)
        yield Component(name=name, version=version, purl=url, bom_ref=str(url))

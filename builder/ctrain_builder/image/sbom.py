"""The package list (SBOM) of an image, in CycloneDX: what dpkg and Python's metadata say, kept in the image's file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctrain_builder.layers.container import Container
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.base.paths import missing_package_hint
from ctrain_runtime.errors import BuildError
from ctrain_runtime.store.manifest import Manifest

if TYPE_CHECKING:  # an optional dependency, imported when an image is built
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import DisjunctiveLicense

_NAME = "sbom.cdx.json"
OBJECT = ("--datatype", "9", "--sbomformat", "cyclonedx-json", "--groupid", "1", "--filename", _NAME)


def require() -> None:
    """Raise BuildError, before a long build, if the library that writes package lists is not there."""
    if not find_spec("cyclonedx"):
        what = "Python package cyclonedx-python-lib, needed for package lists, is not installed"
        raise BuildError(what, missing_package_hint("cyclonedx-python-lib"))


def attach(
    container: Container,
    plan: BuildPlan,
    image: Path,
    packages: Mapping[str, Any],
    license_of: Mapping[str, str],
    log: Path,
) -> None:
    """Put the list of an image's packages into its file. Raises BuildError."""
    (container.work / _NAME).write_text(document(plan, packages, license_of), encoding="utf-8")
    argv = [container.engine.path, "sif", "add", *OBJECT, str(image), str(container.work / _NAME)]
    container.require(argv, log, f"cannot add the package list to {image}")


def document(plan: BuildPlan, packages: Mapping[str, Any], license_of: Mapping[str, str]) -> str:
    """The CycloneDX document for what inside/examine.py found ({} without Python); the same for equal images.

    `license_of` has the licences of the image's layers, which are parts of the image in it.
    """
    layers = [_layer(name, licence) for name, licence in license_of.items()]
    content = [plan.keys, packages, dict(license_of)]
    version = f"{plan.spec.tag}-{plan.spec.stack}"
    return _document(
        plan.spec.store_name, version, packages, layers, content, max(layer.epoch for layer in plan.layers)
    )


def document_of_adopted(manifest: Manifest, packages: Mapping[str, Any], epoch: float) -> str:
    """The same of a file that was modified at `epoch`; the same for equal files."""
    version = f"{manifest.tag}-{manifest.stack}"
    return _document(manifest.name, version, packages, (), [manifest.digest, packages], epoch)


def _document(
    name: str, version: str, packages: Mapping[str, Any], layers: Iterable[Component], content: Any, epoch: float
) -> str:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref="image", components=layers)
    components = list(_components(packages))
    bom = Bom(
        components=components,
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(content, sort_keys=True)),
        metadata=BomMetaData(component=image, timestamp=datetime.fromtimestamp(epoch, timezone.utc)),
    )
    bom.register_dependency(image, components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _layer(name: str, licence: str) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    return Component(name=name, type=ComponentType.CONTAINER, bom_ref=f"layer {name}", licenses=_licenses([licence]))


def _licenses(names: Iterable[str]) -> list[DisjunctiveLicense]:
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.spdx import is_supported_id

    return [DisjunctiveLicense(id=name) if is_supported_id(name) else DisjunctiveLicense(name=name) for name in names]


def _components(packages: Mapping[str, Any]) -> Iterator[Component]:
    from cyclonedx.model.component import Component
    from packageurl import PackageURL

    system = packages.get("system", {})
    license_of = packages.get("licenses", {})

    def component(kind: str, name: str, version: str, url: PackageURL) -> Component:
        licences = _licenses(license_of.get(kind, {}).get(name, ()))
        return Component(name=name, version=version, purl=url, bom_ref=str(url), licenses=licences)

    for name, version in packages.get("pypi", {}).items():
        yield component("pypi", name, version, PackageURL("pypi", name=name, version=version))
    for package in packages.get("deb", ()):
        name, version = package["package"], package["version"]
        facts = {"arch": package["architecture"], "distro": system.get("VERSION_CODENAME", "")}
        url = PackageURL("deb", system.get("ID", "debian"), name, version, facts)
        yield component("deb", name, version, url)

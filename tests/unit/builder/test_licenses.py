from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ctrain_builder import build_plan, image_spec
from ctrain_builder.build_plan import BuildPlan
from ctrain_builder.image import licenses, sbom
from ctrain_runtime.store.manifest import LICENSES_LABEL, layer_licenses

NVIDIA = "NVIDIA Deep Learning Container License"


@pytest.fixture
def planned(project: Path) -> BuildPlan:
    """A base that says nothing of its licence, and a layer under Apache's."""
    with (project / "definitions/upper/upper.def").open("a") as file:
        file.write(f"\n%labels\n    {LICENSES_LABEL} Apache-2.0\n")
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: True, lambda _: "")


def test_the_licence_of_an_upstream_image_is_not_hidden_by_that_of_a_layer(planned: BuildPlan) -> None:
    found = licenses.by_layer(planned, {LICENSES_LABEL: NVIDIA})
    assert found == {"base": NVIDIA, "upper": "Apache-2.0"}
    assert licenses.combined(found.values()) == f"{NVIDIA} AND Apache-2.0"
    assert layer_licenses({"org.ctrain.licenses": licenses.as_label(found)}) == found


def test_the_licences_of_packages_are_counted() -> None:
    of = {"pypi": {"a": ("MIT",), "b": ("MIT",), "c": ()}, "deb": {"d": ("GPL-2+", "Expat"), "e": ("GPL-2+", "MIT")}}
    label = {"org.ctrain.licenses.packages": "MIT 3; GPL-2+ 2; Expat 1; not named 1"}
    assert licenses.of_packages({"licenses": of}) == label
    assert licenses.of_packages({}) == licenses.of_packages({"licenses": {"pypi": {}, "deb": {}}}) == {}


def test_what_an_upstream_image_says_stands_beside_what_its_definition_says(project: Path) -> None:
    path = project / "definitions/base/base.def"
    path.write_text(f"{path.read_text()}\n%labels\n    {LICENSES_LABEL} LicenseRef-NVIDIA\n")
    spec = image_spec.find_spec(project / "definitions", "small")
    plan = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: True, lambda _: "")
    assert licenses.by_layer(plan, {LICENSES_LABEL: NVIDIA})["base"] == f"{NVIDIA} AND LicenseRef-NVIDIA"
    assert licenses.by_layer(plan, {LICENSES_LABEL: "LicenseRef-NVIDIA"})["base"] == "LicenseRef-NVIDIA"


def test_nothing_is_claimed_of_what_says_nothing(planned: BuildPlan) -> None:
    assert licenses.by_layer(planned, {}) == {"upper": "Apache-2.0"}
    bare = dataclasses.replace(planned, layers=planned.layers[:1])
    assert licenses.by_layer(bare, {}) == {}
    assert layer_licenses({}) == {}


def test_a_choice_of_licences_stays_one() -> None:
    assert licenses.combined(["MIT OR Apache-2.0", "MIT", "MIT"]) == "(MIT OR Apache-2.0) AND MIT"
    assert licenses.combined(["MIT OR Apache-2.0"]) == "MIT OR Apache-2.0"
    assert licenses.combined([]) == ""


def test_the_package_list_has_the_licence_of_each_layer(planned: BuildPlan) -> None:
    told = json.loads(sbom.document(planned, {}, {"base": NVIDIA, "upper": "Apache-2.0"}))
    layers = {part["name"]: part["licenses"] for part in told["metadata"]["component"]["components"]}
    assert layers == {"base": [{"license": {"name": NVIDIA}}], "upper": [{"license": {"id": "Apache-2.0"}}]}

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.image import licenses, sbom
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.store.manifest import (
    ADOPTED_LABEL,
    LICENSES_LABEL,
    combined_licenses,
    layer_licenses,
    stated_licenses,
)

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
    assert combined_licenses(found.values()) == f"{NVIDIA} AND Apache-2.0"
    assert layer_licenses({"org.ctrain.licenses": licenses.as_label(found)}) == found


def test_the_licences_of_packages_are_counted() -> None:
    of = {"pypi": {"a": ("MIT",), "b": ("MIT",), "c": ()}, "deb": {"d": ("GPL-2+", "Expat"), "e": ("GPL-2+", "MIT")}}
    told = licenses.of_packages({}, {"licenses": of})
    assert told["org.ctrain.licenses.packages"] == "MIT 3; GPL-2+ 2; Expat 1; not named 1"
    assert licenses.of_packages({}, {}) == licenses.of_packages({}, {"licenses": {"pypi": {}, "deb": {}}}) == {}


def test_the_licence_label_has_those_of_packages_as_spdx_writes_them() -> None:
    """None is translated: LicenseRef- begins what is on no list, also that a package names none."""
    of = {
        "pypi": {"a": ("mit",), "b": ("Apache-2.0 OR BSD-2-Clause",), "c": (), "d": ("BSD License",)},
        "deb": {"e": ("GPL-2+", "MIT", "(?)"), "f": ("Apache-2.0",), "g": ("BSD-3-clause or GPL", "Zlib")},
    }
    labels = {LICENSES_LABEL: "Apache-2.0", "org.ctrain.licenses": "base: Apache-2.0"}
    told = licenses.of_packages(labels, {"licenses": of})[LICENSES_LABEL]
    assert told == (
        "Apache-2.0 AND LicenseRef-not-named AND (Apache-2.0 OR BSD-2-Clause) AND LicenseRef-BSD-License"
        " AND LicenseRef-BSD-3-clause-or-GPL AND LicenseRef-GPL-2-plus AND MIT AND Zlib"
    )
    whole = {**labels, **licenses.of_packages(labels, {"licenses": of})}
    assert stated_licenses(whole) == "Apache-2.0", "what packages claim does not decide what is passed on"
    assert stated_licenses({**whole, ADOPTED_LABEL: "x"}) == told, "of an adopted image nobody has stated any"


def test_the_licence_label_has_a_bounded_length_and_says_what_it_leaves_out() -> None:
    of = {"pypi": {f"p{number}": (f"licence number {number}",) for number in range(200)}}
    told = licenses.of_packages({}, {"licenses": of})[LICENSES_LABEL]
    *names, others = told.split(" AND ")
    assert len(told) <= 1030
    assert others == f"LicenseRef-{200 - len(names)}-others" and len(names) > 20


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
    assert combined_licenses(["MIT OR Apache-2.0", "MIT", "MIT"]) == "(MIT OR Apache-2.0) AND MIT"
    assert combined_licenses(["MIT OR Apache-2.0"]) == "MIT OR Apache-2.0"
    assert combined_licenses([]) == ""


def test_the_package_list_has_the_licence_of_each_layer(planned: BuildPlan) -> None:
    told = json.loads(sbom.document(planned, {}, {"base": NVIDIA, "upper": "Apache-2.0"}))
    layers = {part["name"]: part["licenses"] for part in told["metadata"]["component"]["components"]}
    assert layers == {"base": [{"license": {"name": NVIDIA}}], "upper": [{"license": {"id": "Apache-2.0"}}]}

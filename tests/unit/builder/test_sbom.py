from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.image import sbom
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.errors import BuildError
from ctrain_runtime.store import sbom as reader
from ctrain_runtime.store.sif import SBOM
from samples.sample_images import sif

PACKAGES: dict[str, Any] = {
    "system": {"ID": "ubuntu", "VERSION_CODENAME": "jammy"},
    "pypi": {"torch": "2.6.0a0+df5bbc0", "numpy": "2.4.6"},
    "deb": [
        {"package": "libc6", "version": "2.35-0ubuntu3.8", "architecture": "amd64"},
        {"package": "libstdc++6", "version": "1:12.3", "architecture": "amd64"},
    ],
}


@pytest.fixture
def planned(project: Path) -> BuildPlan:
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(
        spec, {}, {}, "amd64", lambda _key, _is_base: True, lambda _: "", lambda _: 1_700_000_000
    )


def test_the_document(planned: BuildPlan) -> None:
    told = json.loads(sbom.document(planned, PACKAGES, {}))
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    assert told["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    image = told["metadata"]["component"]
    assert (image["name"], image["version"], image["type"]) == ("small", "1.0-s", "container")
    assert sorted(part["purl"] for part in told["components"]) == [
        "pkg:deb/ubuntu/libc6@2.35-0ubuntu3.8?arch=amd64&distro=jammy",
        "pkg:deb/ubuntu/libstdc%2B%2B6@1:12.3?arch=amd64&distro=jammy",
        "pkg:pypi/numpy@2.4.6",
        "pkg:pypi/torch@2.6.0a0%2Bdf5bbc0",
    ]
    (held,) = (entry["dependsOn"] for entry in told["dependencies"] if entry["ref"] == image["bom-ref"])
    assert sorted(held) == sorted(part["bom-ref"] for part in told["components"])


def test_packages_have_their_licences(planned: BuildPlan) -> None:
    license_of = {"pypi": {"torch": ("BSD-3-Clause",), "numpy": ("BSD License",)}, "deb": {"libc6": ("GPL-2+", "MIT")}}
    told = json.loads(sbom.document(planned, {**PACKAGES, "licenses": license_of}, {}))
    licenses = {part["name"]: [one["license"] for one in part.get("licenses", ())] for part in told["components"]}
    assert licenses == {
        "torch": [{"id": "BSD-3-Clause"}],
        "numpy": [{"name": "BSD License"}],
        "libc6": [{"id": "MIT"}, {"name": "GPL-2+"}],
        "libstdc++6": [],
    }


def test_equal_images_have_equal_documents(planned: BuildPlan) -> None:
    backwards = {**PACKAGES, "pypi": dict(reversed(PACKAGES["pypi"].items()))}
    assert sbom.document(planned, PACKAGES, {}) == sbom.document(planned, backwards, {})
    other = {**PACKAGES, "pypi": {**PACKAGES["pypi"], "numpy": "2.5.0"}}
    numbers = [json.loads(sbom.document(planned, packages, {}))["serialNumber"] for packages in (PACKAGES, other)]
    assert numbers[0] != numbers[1]


def test_the_run_time_reads_it(planned: BuildPlan, tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif(more=[(SBOM, sbom.document(planned, PACKAGES, {}).encode())]))
    assert reader.packages(path) == {
        ("pypi", "torch"): "2.6.0a0+df5bbc0",
        ("pypi", "numpy"): "2.4.6",
        ("deb", "libc6"): "2.35-0ubuntu3.8",
        ("deb", "libstdc++6"): "1:12.3",
    }


def test_an_image_without_packages(planned: BuildPlan) -> None:
    told = json.loads(sbom.document(planned, {}, {}))
    assert "components" not in told or told["components"] == []


def test_a_missing_library_is_told_before_a_long_build(monkeypatch: pytest.MonkeyPatch) -> None:
    sbom.require()
    monkeypatch.setattr(sbom, "find_spec", lambda _name: None)
    with pytest.raises(BuildError, match=r"cyclonedx-python-lib, .* is not installed\. Run: .* install cyclonedx"):
        sbom.require()

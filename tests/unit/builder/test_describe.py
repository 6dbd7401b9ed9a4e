from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.files.digests import regions_digest
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.image import describe, licenses
from ctrain_builder.image.describe import Content
from ctrain_builder.layers.container import Container
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError
from ctrain_runtime.store.manifest import CPU_LABEL, Base, Manifest, Requires
from ctrain_runtime.store.sif import PARTITION
from samples.sample_images import sif

DIGEST = f"sha256:{'a1' * 32}"
TABLE = """\
checked: 2026-11-21
generations:
  "7.0": {name: Volta, gpus: [V100]}
  "8.0": {name: Ampere, gpus: [A100, A30]}
  "9.0": {name: Hopper, gpus: [H100]}
releases:
  "24.12": {driver: 560.35.05, older_drivers: ["470.57", "535"]}
"""


def planned(project: Path, tag: str = "") -> BuildPlan:
    spec = image_spec.find_spec(project / "definitions", "small", tag)
    return build_plan.plan_image(
        spec, {}, {}, "amd64", lambda _key, _is_base: True, lambda _: DIGEST, lambda _: 1_700_000_000
    )


@pytest.fixture
def ngc(project: Path) -> Path:
    """The project, with a base from a registry."""
    text = "Bootstrap: docker\nFrom: nvcr.io/nvidia/small:{{ VERSION }}-py3\n%labels\n"
    labels = {"description": "Release {{ VERSION }}", "licenses": "LicenseRef-NVIDIA"}
    text += "".join(f"    org.opencontainers.image.{name} {value}\n" for name, value in labels.items())
    (project / "definitions/base/base.def").write_text(text)
    with (project / "definitions/upper/upper.def").open("a") as file:
        file.write(
            "\n%labels\n    org.opencontainers.image.description Tools\n    org.opencontainers.image.licenses MIT\n"
        )
    return project


def test_labels_of_an_image_from_a_registry(ngc: Path) -> None:
    image = planned(ngc, "24.12")
    assert describe.labels(image, False, licenses.by_layer(image, {}), {}) == {
        "org.opencontainers.image.title": "small",
        "org.opencontainers.image.version": "24.12-s",
        "org.opencontainers.image.description": "Release 24.12; Tools",
        "org.opencontainers.image.licenses": "LicenseRef-NVIDIA AND MIT",
        "org.ctrain.licenses": "base: LicenseRef-NVIDIA; upper: MIT",
        "org.opencontainers.image.created": "2023-11-14T22:13:20Z",
        "org.opencontainers.image.base.name": "nvcr.io/nvidia/small:24.12-py3",
        "org.opencontainers.image.base.digest": DIGEST,
        "org.ctrain.layers": "base upper",
        "org.ctrain.key": image.keys[-1],
        "org.ctrain.flat": "no",
    }


def test_labels_say_only_what_is_known(project: Path) -> None:
    labels = describe.labels(planned(project), True, {}, {})
    assert labels["org.ctrain.flat"] == "yes"
    assert not [name for name in labels if name.endswith(("licenses", "description", "base.name", "base.digest"))]


def test_the_cpu_that_a_layer_is_compiled_for(project: Path) -> None:
    image = planned(project)
    assert CPU_LABEL not in describe.labels(image, False, {}, {})
    base, upper = image.layers
    inputs = dataclasses.replace(upper.inputs, arguments={"CPU_ARCH": "haswell"})
    image = dataclasses.replace(image, layers=(base, dataclasses.replace(upper, inputs=inputs)))
    assert describe.labels(image, False, {}, {})[CPU_LABEL] == "haswell"
    assert CPU_LABEL not in describe.labels(dataclasses.replace(image, arch="arm64"), False, {}, {})


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.sif"
    path.write_bytes(sif(data=b"base", more=[(PARTITION, b"layer")]))
    return path


def make(
    build: BuildPlan,
    image: Path,
    software: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Manifest:
    container = Container(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), image.parent, lambda: None)
    inspected = '{"data": {"attributes": {"labels": {"a": "b"}}}, "type": "container"}'
    monkeypatch.setattr(Container, "output", lambda _self, _argv: inspected)
    packer = image.parent / "mksquashfs"
    packer.write_text("#!/bin/sh\necho 'mksquashfs version 4.5.1 (2022/03/17)'\n")
    packer.chmod(0o755)
    monkeypatch.setenv("PATH", str(image.parent), prepend=":")
    contents = [LayerContent("sha256:02", 4, "2026-11-01T00:00:00Z"), LayerContent("sha256:03", 5)]
    return describe.manifest(container, build, image, contents, Content(software))


def test_the_manifest_of_an_image_for_gpus(ngc: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ngc / "definitions/ngc.yaml").write_text(TABLE)
    software = {"torch": "2.6.0", "cuda": "12.6", "arch": "7.0 8.0"}
    manifest = make(planned(ngc, "24.12"), image, software, monkeypatch)
    assert manifest.base == Base("nvcr.io/nvidia/small:24.12-py3", DIGEST)
    assert manifest.requires == Requires("560", ("470.57", "535"), ("V100", "A100"), ("7.0", "8.0"))
    assert manifest.software == {"torch": "2.6.0", "cuda": "12.6"}
    assert manifest.digest == regions_digest(image, manifest.layers)
    assert (manifest.size, manifest.flat) == (image.stat().st_size, False)
    assert (manifest.labels, manifest.tested) == ({"a": "b"}, False)
    assert (manifest.tools["apptainer"], manifest.tools["mksquashfs"]) == ("1.4.5", "4.5.1")


def test_labels_have_the_licences_of_packages(ngc: Path) -> None:
    labels = describe.labels(
        planned(ngc), False, {"upper": "MIT"}, {"licenses": {"pypi": {"torch": ("BSD-3-Clause",)}}}
    )
    assert labels["org.ctrain.licenses.packages"] == "BSD-3-Clause 1"
    assert labels["org.opencontainers.image.licenses"] == "MIT AND BSD-3-Clause"
    assert labels["org.ctrain.licenses"] == "upper: MIT"


def test_a_tag_or_a_table_that_is_not_known(ngc: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    software = {"cuda": "13.4", "arch": "9.0"}
    assert make(planned(ngc, "26.08"), image, software, monkeypatch).requires == Requires(arch=("9.0",))
    (ngc / "definitions/ngc.yaml").write_text(TABLE)
    found = make(planned(ngc, "26.08"), image, software, monkeypatch).requires
    assert found == Requires(gpus=("H100",), arch=("9.0",))


def test_the_manifest_of_a_flat_image_for_cpus(project: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image.write_bytes(sif())
    manifest = make(planned(project), image, {"torch": "2.13.0+cpu"}, monkeypatch)
    assert (manifest.base, manifest.requires) == (Base("debootstrap bookworm"), Requires())
    assert manifest.labels == {"a": "b", "org.ctrain.base.built": "2026-11-01T00:00:00Z"}
    assert manifest.flat
    assert [layer.digest for layer in manifest.layers] == ["sha256:02", "sha256:03"]


def test_an_image_of_one_layer_is_not_called_flat(project: Path, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image.write_bytes(sif(data=b"base"))
    whole = planned(project)
    alone = dataclasses.replace(whole, layers=whole.layers[:1])
    assert not make(alone, image, {}, monkeypatch).flat


@pytest.mark.parametrize(
    "answer",
    [
        *("", "text", "[]", "[" * 100_000, "1", '{"x": 1}', '{"software": {"torch": []}}', '{"packages": []}'),
        *(
            '{"packages": {"deb": [1]}}',
            '{"packages": {"deb": [{"package": "x"}]}}',
            '{"packages": {"pypi": {"x": {}}}}',
        ),
    ],
)
def test_a_python_of_the_image_that_answers_otherwise_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    container = Container(Engine("apptainer", "/nowhere", "1.4.5"), tmp_path, lambda: None)
    monkeypatch.setattr(Container, "output", lambda *_args, **_options: answer)
    with pytest.raises(BuildError) as caught:
        describe.examine(container, tmp_path / "x.sif")
    assert caught.value.hint == "Does its python3 work?"
    assert "\n" not in str(caught.value)


DEBIAN = {"package": "bash", "version": "5.2", "architecture": "amd64"}


def test_what_the_python_of_an_image_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container = Container(Engine("apptainer", "/nowhere", "1.4.5"), tmp_path, lambda: None)
    told = {"software": {"torch": "2.13.0"}, "packages": {"system": {}, "deb": [DEBIAN], "pypi": {"torch": "2.13.0"}}}
    for answer in (told, {}):
        line = f"hello\n{json.dumps(answer)}\n"
        monkeypatch.setattr(Container, "output", lambda *_args, line=line, **_options: line)
        content = describe.examine(container, tmp_path / "x.sif")
        assert {name: value for name, value in dataclasses.asdict(content).items() if value} == answer

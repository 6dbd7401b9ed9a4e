"""The matrix of tags in definitions/images.yaml, against what definitions/ngc.yaml knows of them."""

from __future__ import annotations

import pytest

from ctrain_builder.definitions import definition, image_spec, ngc
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import MIRROR
from ctrain_runtime.base.paths import data_dir

DEFINITIONS = data_dir("definitions")
NGC = [spec for spec in image_spec.all_specs(DEFINITIONS) if spec.name.endswith("-ngc")]


@pytest.mark.parametrize("spec", NGC, ids=lambda spec: spec.title)
def test_each_tag_is_declared_as_it_is_known(spec: ImageSpec) -> None:
    release, declared = ngc.read(DEFINITIONS).releases[spec.tag], spec.variant
    assert f"{release.python}.".startswith(f"{declared.python}.")
    assert set(declared.sm.split()) <= set(release.arch.replace("+PTX", "").split())
    at_hpcx = tuple(map(int, spec.tag.split("."))) < (26, 8)  # 25.10 is the last that was seen to have it there
    assert declared.mpi == ("/opt/hpcx/ompi" if at_hpcx else "/usr/local/mpi")


@pytest.mark.parametrize("spec", NGC, ids=lambda spec: spec.title)
def test_on_arm64_no_gpus_are_declared_that_images_for_it_lack(spec: ImageSpec) -> None:
    """24.11 was compiled for 8.0, 8.6 and 9.0 there, 25.10 for no 7.5. GH200, the reason for such images, has 9.0."""
    known = {"24.12": {"8.0", "8.6", "9.0"}, "26.08": {"8.0", "8.6", "9.0", "10.0", "11.0", "12.0"}}
    declared = set(spec.variant.on("arm64").sm.split())
    assert declared <= known.get(spec.tag, set())
    assert ("9.0" in declared) is (spec.tag in known)


@pytest.mark.parametrize("spec", image_spec.all_specs(DEFINITIONS), ids=lambda spec: spec.title)
def test_no_instructions_of_x86_are_planned_for_arm64(spec: ImageSpec) -> None:
    plan = build_plan.plan_image(spec, {}, {}, "arm64", lambda *_: False, lambda _: "sha256:71ab")
    for layer in plan.layers:
        text = definition.render(layer.definition, {**layer.arguments, MIRROR: "x"}).text
        assert "-march=haswell" not in text and "-march=x86-64" not in text


def test_the_default_runs_on_v100_and_a100_and_the_newest_known_is_there() -> None:
    specs = {spec.tag: spec for spec in NGC if spec.name == "pytorch-ngc"}
    default = image_spec.find_spec(DEFINITIONS, "pytorch-ngc")
    assert {"7.0", "8.0"} <= set(default.variant.sm.split())
    assert {"22.03", default.tag, max(ngc.read(DEFINITIONS).releases)} <= specs.keys()


def test_python_3_8_gets_versions_made_for_it() -> None:
    """The newest DeepSpeed needs a newer Python and torch; its compiler knows no x86-64-v3."""
    old = [spec for spec in NGC if spec.variant.python == "3.8" and spec.name == "pytorch-ngc"]
    assert old and all({"DEEPSPEED", "CPU_ARCH"} <= spec.arguments.keys() for spec in old)

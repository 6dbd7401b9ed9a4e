"""The matrix of tags in definitions/images.yaml, against what definitions/ngc.yaml knows of them."""

from __future__ import annotations

import pytest

from ctrain_builder import image_spec, ngc
from ctrain_builder.image_spec import ImageSpec
from ctrain_runtime.paths import data_dir

DEFINITIONS = data_dir("definitions")
NGC = [spec for spec in image_spec.all_specs(DEFINITIONS) if spec.name.endswith("-ngc")]


@pytest.mark.parametrize("spec", NGC, ids=lambda spec: spec.title)
def test_each_tag_is_declared_as_it_is_known(spec: ImageSpec) -> None:
    release, declared = ngc.read(DEFINITIONS).releases[spec.tag], spec.variant
    assert f"{release.python}.".startswith(f"{declared.python}.")
    assert set(declared.sm.split()) <= set(release.arch.replace("+PTX", "").split())
    at_hpcx = tuple(map(int, spec.tag.split("."))) < (26, 8)  # 25.10 is the last that was seen to have it there
    assert declared.mpi == ("/opt/hpcx/ompi" if at_hpcx else "/usr/local/mpi")


def test_the_default_runs_on_v100_and_a100_and_the_newest_known_is_there() -> None:
    specs = {spec.tag: spec for spec in NGC if spec.name == "pytorch-ngc"}
    default = image_spec.find_spec(DEFINITIONS, "pytorch-ngc")
    assert {"7.0", "8.0"} <= set(default.variant.sm.split())
    assert {"22.03", default.tag, max(ngc.read(DEFINITIONS).releases)} <= specs.keys()


def test_python_3_8_gets_versions_made_for_it() -> None:
    """The newest DeepSpeed needs a newer Python and torch; its compiler knows no x86-64-v3."""
    old = [spec for spec in NGC if spec.variant.python == "3.8" and spec.name == "pytorch-ngc"]
    assert old and all({"DEEPSPEED", "CPU_ARCH"} <= spec.arguments.keys() for spec in old)

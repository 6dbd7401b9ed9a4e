from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_builder import build_plan, image_spec
from ctrain_builder.image import explain
from ctrain_builder.image.explain import Step
from ctrain_builder.layers.build_host import BuildHost
from ctrain_builder.layers.container import Container
from ctrain_runtime.engines.apptainer import Engine
from samples.programs import write_program

BASE, UPPER = Path("/cache/layers/base.sif"), Path("/cache/layers/upper.sqsh")


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "mksquashfs", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def _steps(project: Path, *, have_base: bool = True, root: bool = True, flat: bool = False) -> list[Step]:
    spec = image_spec.find_spec(project / "definitions", "small")
    plan = build_plan.plan_image(spec, {}, {}, "amd64", lambda _, is_base: is_base and have_base, lambda _: "")
    container = Container(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), Path("/nowhere"), lambda: None, root=root)
    return explain.steps(container, plan, [BASE, UPPER], BuildHost({}, (), None, {}), flat)


def _words(step: Step) -> list[str]:
    """The program of each command, and what the engine is to do."""
    return [
        " ".join([Path(command.argv[0]).name, *(word for word in command.argv[1:3] if word in ("build", "sif"))])
        for command in step.commands
        if not command.when
    ]


def test_what_exists_is_not_made_again(project: Path) -> None:
    assert [(step.kind, step.name) for step in _steps(project)] == [("layer", "upper"), ("image", "small")]
    assert [step.name for step in _steps(project, have_base=False)] == ["base", "upper", "small"]


def test_the_commands_of_each_step(project: Path) -> None:
    base, upper, image = _steps(project, have_base=False)
    assert _words(base) == ["apptainer build", "apptainer", "mksquashfs", *["apptainer sif"] * 4]
    assert _words(upper) == ["apptainer", "mksquashfs"]
    assert _words(image) == ["apptainer", "cp", *["apptainer sif"] * 4]
    assert "sbom.cdx.json" in image.commands[-1].argv
    assert _words(_steps(project, flat=True)[-1]) == ["apptainer", *["apptainer sif"] * 5]


def test_an_ordinary_user_packs_inside_and_takes_over_what_is_left(project: Path) -> None:
    base, upper, _ = _steps(project, have_base=False, root=False)
    assert _words(base) == ["apptainer build", *["apptainer"] * 3, *["apptainer sif"] * 4]
    assert _words(upper) == ["apptainer"] * 3


def test_what_depends_on_the_definition_says_so(project: Path) -> None:
    upper = _steps(project)[0]
    assert [command.when for command in upper.commands if command.when] == [
        "if %post changes files that the layers below hold",
        "if one of these has several names",
        "if %post puts a folder in the place of another",
    ]


def test_the_work_folder_has_no_name_yet(project: Path) -> None:
    words = [word for step in _steps(project) for command in step.commands for word in command.argv]
    assert "WORK/overlay" in words
    assert not [word for word in words if "/nowhere" in word]

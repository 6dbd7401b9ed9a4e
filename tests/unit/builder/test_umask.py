"""What is built does not depend on the umask of who builds it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from ctrain_builder.build import Builder
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions.files import SourceFile
from ctrain_builder.layers import layer, user_layer
from ctrain_builder.layers.container import Container
from ctrain_builder.plan import build_plan
from ctrain_runtime.engines.apptainer import Engine

ENGINE = Engine("apptainer", "/nowhere", "1.4.5")


SITE = BuildHost({}, (), None, {})
PROGRESS: Any = SimpleNamespace(tick=lambda: None)  # nothing more is told before the work begins


class Started(Exception):
    """The work has begun."""


@pytest.fixture(autouse=True, params=[0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode_of_a_new_file(folder: Path) -> int:
    (folder / "new").write_text("")
    return (folder / "new").stat().st_mode & 0o777


def test_of_an_image(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def make(*_: object) -> Any:
        modes.append(mode_of_a_new_file(tmp_path))
        raise Started

    monkeypatch.setattr(Builder, "_make", make)
    spec = image_spec.find_spec(project / "definitions", "small")
    plan = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: True, lambda _: "")
    with pytest.raises(Started):
        Builder(open_cache(tmp_path / "cache"), ENGINE, SITE, PROGRESS).build(plan)
    assert modes == [0o644]


def test_of_a_user_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def new_overlay(_: Container) -> Path:
        modes.append(mode_of_a_new_file(tmp_path))
        raise Started

    monkeypatch.setattr(Container, "new_overlay", new_overlay)
    container = Container(ENGINE, tmp_path, lambda: None)
    image: Any = SimpleNamespace(path=tmp_path / "x.sif")
    source = SourceFile(tmp_path / "r.txt", PurePosixPath("r.txt"), False, "")
    workspace: Any = None
    with pytest.raises(Started):
        user_layer.make(container, image, [source], workspace, tmp_path / "log", tmp_path / "x.sqsh")
    assert modes == [0o644]


@pytest.mark.parametrize(("script", "mode"), [(layer._INSIDE, 0o664), (user_layer._INSIDE, 0o644)])
def test_inside_the_container(script: str, mode: int, tmp_path: Path) -> None:
    """As `apptainer build` sets it for layers of an image: files of %post can be written by their group."""
    for name in ("mnt/files", "mnt/source", "mnt/metadata", "singularity.d"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("mnt/files.list", "mnt/build-env.sh"):
        (tmp_path / name).write_text("")
    script = script.replace("python3", "false")  # which need not have pip
    script = script.replace("/.singularity.d", f"{tmp_path}/singularity.d").replace("/mnt", f"{tmp_path}/mnt")
    made = tmp_path / "made"
    subprocess.run(["/bin/sh", "-c", script, "sh", "touch", str(made)], check=True, timeout=60)
    assert made.stat().st_mode & 0o777 == mode

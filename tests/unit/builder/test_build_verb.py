from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder import cache as caches
from ctrain_builder import catalog, plan, record
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.make import smoke
from ctrain_runtime.cli.main import main
from ctrain_runtime.store import Manifest

Ctrain = Callable[..., int]


@pytest.fixture
def ctrain(project: Path, tmp_path: Path) -> Ctrain:
    places = ["--definitions", str(project / "definitions"), "--cache", str(tmp_path / "cache")]
    return lambda verb, *args: main(BUILD_VERBS, [verb, "small", *places, *args])


def test_plan_as_text_and_json(ctrain: Ctrain, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctrain("build", "--plan") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("small 1.0-s (")
    assert [line.split()[:3] for line in lines[2:4]] == [["base", "to", "build"], ["upper", "to", "build"]]
    assert lines[-1] == "2 of 2 layers to build"
    assert ctrain("build", "--plan", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(layer["definition"], layer["exists"]) for layer in told["layers"]] == [("base", False), ("upper", False)]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("build", "--build-arg", "COLOUR"), 64, "--build-arg 'COLOUR' has no value"),
        (("build", "--plan", "--build-arg", "X=1"), 64, "uses argument X"),
        (("publish", "--store", "s"), 78, "image small 1.0 is not built and tested. Run: ctrain build small"),
        (("publish",), 64, "no store is named"),
    ],
)
def test_mistakes_are_one_line(
    ctrain: Ctrain,
    args: tuple[str, ...],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CTRAIN_STORE", raising=False)
    assert ctrain(*args) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ctrain: ")
    assert message in line


def test_an_image_that_is_up_to_date_is_left_alone(
    ctrain: Ctrain,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = tmp_path / "bin/apptainer"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\n[ "$1" = --version ] && echo apptainer version 1.4.5\n')
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    assert ctrain("build", "--plan", "--json") == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    manifest = make_manifest(layers=[(layer["definition"], layer["key"]) for layer in layers])
    (tmp_path / "cache/images/small_1.0-s.sif").touch()
    record.write(tmp_path / "cache/images/small_1.0-s.json", manifest)
    assert ctrain("build") == 0
    assert "is up to date, nothing to do" in capsys.readouterr().out


def test_the_tests_are_those_of_what_the_image_holds(project: Path, tmp_path: Path) -> None:
    spec = catalog.find(project / "definitions", "small")
    cache = caches.open_cache(tmp_path / "cache")
    planned = plan.make(spec, {}, {}, "amd64", cache.has_layer)
    assert [check.name for check in smoke.checks(planned, {"python": "3.11"})] == ["layers mounted"]
    checks = {check.name: check for check in smoke.checks(planned, {"torch": "2.13.0+cpu", "torchvision": "0.28.0"})}
    assert list(checks) == ["layers mounted", "imports", "torch unchanged"]
    assert checks["imports"].argv[-1] == "import torch, torchvision"
    assert checks["layers mounted"].argv[-1] == planned.keys[-1]

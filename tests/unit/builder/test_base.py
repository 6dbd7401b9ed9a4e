from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ctrain_builder import catalog
from ctrain_builder import plan as plans
from ctrain_builder.make import base, metadata, smoke
from ctrain_builder.plan import PlannedLayer
from samples.programs import answer

MIRROR = "http://mirror.example/debian"


def _planned(project: Path, site: Mapping[str, str] = {}) -> PlannedLayer:  # read
    spec = catalog.find(project / "definitions", "small")
    return plans.make(spec, {}, site, "amd64", lambda _key, _is_base: False, lambda _reference: "").layers[0]


def test_the_engine_gets_the_definition_with_its_values_but_not_the_mirror(project: Path) -> None:
    text = base.text(_planned(project, {"MIRROR": MIRROR}))
    assert "MirrorURL: http://mirror.of.the.building.machine\n" in text
    assert "echo 1.0\n" in text
    assert MIRROR not in text and "{{" not in text


def test_a_docker_base_is_named_by_its_digest(project: Path) -> None:
    path = project / "definitions/base/base.def"
    path.write_text(
        "Bootstrap: docker\nFrom: nvcr.io/small:{{ VERSION }}-py3 # the tag\n\n%post\n    echo From: here\n"
    )
    planned = dataclasses.replace(_planned(project), base="nvcr.io/small@sha256:a1")
    assert base.text(planned) == "Bootstrap: docker\nFrom: nvcr.io/small@sha256:a1\n\n%post\n    echo From: here\n"


def test_debootstrap_gets_the_mirror_after_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(tmp_path / "bin", "debootstrap")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    variables = base.mirror_variables({"MIRROR": MIRROR}, tmp_path)
    argv = ["debootstrap", "--variant=minbase", "bookworm", "/root folder", metadata.PLACEHOLDER]
    subprocess.run(argv, env=variables, check=True)
    assert calls.read_text() == f"--variant=minbase bookworm /root folder {MIRROR}\n"


def test_without_a_mirror_or_debootstrap_nothing_is_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert base.mirror_variables({"TAG": "24.12"}, tmp_path) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert base.mirror_variables({"MIRROR": MIRROR}, tmp_path) == {}


def test_an_upper_definition_shows_no_mirror_either(project: Path) -> None:
    path = project / "definitions/upper/upper.def"
    path.write_text(path.read_text() + "\n%labels\n    org.mirror {{ MIRROR }}\n")
    spec = catalog.find(project / "definitions", "small")
    site = {"MIRROR": "http://kim:s3cret@mirror.example/debian"}
    upper = plans.make(spec, {}, site, "amd64", lambda _key, _is_base: False, lambda _reference: "").layers[1]
    shown = metadata.shown(upper)
    assert shown.labels == {"org.mirror": metadata.PLACEHOLDER}
    assert "s3cret" not in str(metadata.for_layer({}, shown, upper.key, upper.epoch))
    assert "s3cret" not in str(smoke.rendered(upper).labels)

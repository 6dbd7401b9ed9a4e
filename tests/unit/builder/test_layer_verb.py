"""`ctrain layer` without an engine: what it refuses before any work, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import main
from samples.layers import write_layer
from samples.plans import a_manifest
from samples.programs import answer, write_program
from samples.sample_images import write_store


def ctrain(*arguments: str) -> int:
    return main(BUILD_VERBS, ["layer", *arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A requirements file, a store, and the programs that are asked for first."""
    for name in ("mksquashfs", "unsquashfs"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        write_program(tmp_path / "bin" / name, "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CTRAIN_STORE", str(write_store(tmp_path / "store", {})))
    (tmp_path / "r.txt").write_text("einops\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ((), 64, "the following arguments are required: build|show|sign"),
        (("build", "r.txt", "-o", "x.sqsh"), 64, "the following arguments are required: --on. See: ctrain layer build"),
        (
            ("build", "no.txt", "--on", "pytorch", "-o", "x.sqsh"),
            64,
            "no.txt not found. Name a requirements file or a script",
        ),
        (
            ("build", "r.txt", "--with", "/", "--on", "pytorch", "-o", "x.sqsh"),
            64,
            "would show the whole home",
        ),
        (("build", "r.txt", "--on", "pytorch", "-o", "."), 64, "must be a file in an existing directory"),
        (("build", "r.txt", "--on", "pytorch", "-o", "no/x.sqsh"), 64, "must be a file in an existing directory"),
        (("build", "r.txt", "--on", "docker://debian:12", "-o", "x.sqsh"), 64, "Build an image whose definition has"),
        (("build", "r.txt", "--on", "pytorhc", "-o", "x.sqsh"), 68, "image 'pytorhc' not found in "),
        (("build", "r.txt", "--on", "pytorch", "-o", "x.sqsh"), 73, "neither apptainer nor singularity is on PATH"),
        (("show", "r.txt"), 69, "r.txt is not a user layer: not a squashfs"),
        (("sign", "r.txt", "--key", "k.pem"), 69, "r.txt is not a user layer: not a squashfs"),
    ],
)
def test_what_can_not_be_done_is_one_line_and_leaves_nothing(
    folder: Path, arguments: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctrain(*arguments) == code
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1, error
    assert not (folder / "x.sqsh").exists()
    assert not list(folder.glob("cache/tmp/*"))


def test_an_image_that_the_site_would_not_run_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = folder / "config/ctrain/sites/local.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(f"require_signature: true\ntrusted_keys: [{'AB' * 20}]\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "user-cache"))
    monkeypatch.setenv("CTRAIN_SITE", "local")
    answer(folder / "bin", "apptainer", error="no signature\n", code=255, version="apptainer version 1.4.5\n")
    assert ctrain("build", "r.txt", "--on", "pytorch", "-o", "x.sqsh") == 69
    assert "is not signed by a key that site local trusts" in capsys.readouterr().err


def test_an_engine_that_can_not_start_the_container(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fatal = "FATAL:   overlay images requires 'enable overlay', but set to 'no' by administrator\n"
    answer(folder / "bin", "apptainer", error=fatal, code=255, version="apptainer version 1.4.5\n")
    assert ctrain("build", "r.txt", "--on", "pytorch", "-o", "x.sqsh") == 73
    error = capsys.readouterr().err
    assert error.startswith("ctrain: apptainer can't run a container with an overlay over ")
    assert "requires 'enable overlay'" in error and "Log: " in error and error.count("\n") == 1
    assert not list(folder.glob("cache/tmp/*"))


def test_singularity_builds_no_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(folder / "bin", "singularity", version="singularity-ce version 4.5.1\n")
    assert ctrain("build", "r.txt", "--on", "pytorch", "-o", "x.sqsh") == 73
    error = capsys.readouterr().err
    assert "builds need Apptainer, and here is singularity 4.5.1 (" in error and error.count("\n") == 1
    assert not (folder / "x.sqsh").exists()


def test_a_machine_without_squashfs_tools(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bin/unsquashfs").unlink()
    assert ctrain("build", "r.txt", "--on", "pytorch", "-o", "x.sqsh") == 77
    assert "unsquashfs is not on PATH. Install squashfs-tools" in capsys.readouterr().err


def test_what_a_layer_is_on_and_what_it_adds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_layer(folder / "my.sqsh", a_manifest(), einops="0.8.2", **{"a-longer-name": "1"})
    assert ctrain("show", "my.sqsh") == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"layer   {path} (")
    assert rest == [
        "on      pytorch 24.12-hd-r3  sha256:9f2c41d0a7e3",
        "from    requirements.txt, 2026-11-20T01:02:03Z",
        "package        version",
        "a-longer-name  1",
        "einops         0.8.2",
    ]
    assert ctrain("show", "my.sqsh", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["path"], data["parent"]["digest"]) == (str(path), "sha256:9f2c41d0a7e3")
    assert data["packages"] == {"einops": "0.8.2", "a-longer-name": "1"}


def test_a_layer_without_packages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_layer(folder / "my.sqsh", a_manifest())
    assert ctrain("show", "my.sqsh") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no Python packages"

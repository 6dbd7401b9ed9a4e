"""`ctrain store modules`: which files there are, and whose. What they do is in tests/integration/test_modules.py."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import main
from samples.programs import write_program
from samples.sample_images import write_image, write_store

IMAGES = ({"release": 1}, {"release": 2}, {"release": 3, "flat": True}, {"name": "cpu", "release": 1})
PROD = {"pytorch_prod": "pytorch_24.12-hd-py3-r1.sif"}


class Shelf:
    """A store, a folder for its module files, and what the verb says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.output, self._capsys = folder / "store", folder / "modules", capsys

    def __call__(self, *argv: str, code: int = 0) -> str:
        """What `ctrain store ARGV` prints; in case of an error, that."""
        assert main(BUILD_VERBS, ["store", *argv, "--store", str(self.root)]) == code
        said = self._capsys.readouterr()
        return said.err if code else said.out

    def modules(self, code: int = 0) -> str:
        return self("modules", "--output", str(self.output), code=code)

    def data(self) -> Any:
        return json.loads(self("modules", "--output", str(self.output), "--json"))

    @property
    def files(self) -> dict[str, str]:
        every = (path for path in self.output.rglob("*") if path.is_file())
        return {str(path.relative_to(self.output)): path.read_text() for path in every}


@pytest.fixture
def shelf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shelf:
    write_store(tmp_path / "store", *IMAGES, channels=PROD)
    return Shelf(tmp_path, capsys)


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_two_files_for_each_version_and_two_that_name_the_default(shelf: Shelf) -> None:
    assert shelf.modules().splitlines() == [
        "module                           also called",
        "ctrain-cpu/24.12-hd-r1           default",
        "ctrain-pytorch/24.12-hd-r1       default, prod",
        "ctrain-pytorch/24.12-hd-r2",
        "ctrain-pytorch/24.12-hd-r3-flat",
        f"16 files written, 0 removed; for users: module use {shelf.output}",
    ]
    assert len(shelf.files) == 16
    tcl, lua = (shelf.files[f"ctrain-pytorch/24.12-hd-r2{suffix}"] for suffix in ("", ".lua"))
    assert tcl.startswith("#%Module1.0 made by `ctrain store modules`")
    assert (
        f'\nsetenv SIF "{shelf.root}/pytorch_24.12-hd-py3-r2.sif"\nsetenv CTRAIN_IMAGE "pytorch:24.12-hd-r2"\n' in tcl
    )
    assert f'\nsetenv("CTRAIN_STORE", "{shelf.root}")\n' in lua
    assert shelf.files["ctrain-pytorch/.modulerc"].splitlines()[1:] == [
        'module-version "ctrain-pytorch/24.12-hd-r1" "default"',
        'module-version "ctrain-pytorch/24.12-hd-r1" "prod"',
    ]


def test_without_prod_the_default_is_the_newest_that_is_not_flat(shelf: Shelf) -> None:
    (shelf.root / "channels/pytorch_prod.sif").unlink()
    modules = shelf.data()["modules"]
    assert [name for name, symbols in modules.items() if symbols] == [
        "ctrain-cpu/24.12-hd-r1",
        "ctrain-pytorch/24.12-hd-r2",
    ]


@pytest.mark.parametrize("channel", ["default", "24.12-hd-r2", "a b", "$(x)"])
def test_a_channel_that_can_not_be_a_symbol_is_none(shelf: Shelf, channel: str) -> None:
    (shelf.root / f"channels/pytorch_{channel}.sif").symlink_to("../pytorch_24.12-hd-py3-r1.sif")
    assert shelf.data()["modules"]["ctrain-pytorch/24.12-hd-r1"] == ["default", "prod"]


def test_one_command_runs_the_programs_of_an_image_and_hides_none_of_the_hosts(shelf: Shelf, tmp_path: Path) -> None:
    """A `python3` on PATH would run each `#!/usr/bin/env python3` of the host in the container, too."""
    software = {"python": "3.12", "torch": "2.6.0", "cuda": "12.6", "horovod": "0.28", "mpi": "Open MPI 4.1.7"}
    write_image(shelf.root, name="all", software=software)
    shelf.modules()
    made = shelf.output / ".commands/ctrain-all/24.12-hd-r3"
    assert {path.name for path in made.iterdir()} == {"ctrain-all"}
    assert f'\nprepend-path PATH "{made}"\n' in shelf.files["ctrain-all/24.12-hd-r3"]
    assert f'\nprepend_path("PATH", "{made}")\n' in shelf.files["ctrain-all/24.12-hd-r3.lua"]
    for engine in ("singularity", "apptainer"):  # the second one is taken where there are both
        write_program(tmp_path / engine, '#!/bin/sh\nprintf "%s|" "${0##*/}" "$@"\n')
        argv = [made / "ctrain-all", "torchrun", "a b", "$HOME"]
        done = subprocess.run(argv, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
        assert done.stdout == f"{engine}|exec|--nv|{shelf.root}/all_24.12-hd-py3-r3.sif|torchrun|a b|$HOME|"
    done = subprocess.run([made / "ctrain-all"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (64, "use: ctrain-all PROGRAM [ARGUMENT ...]\n")


def test_an_output_that_path_could_not_hold_is_refused(shelf: Shelf) -> None:
    shelf.output = shelf.output.parent / "a:b"
    assert "has a ':' in its path" in shelf.modules(code=76)
    assert not shelf.output.exists()


def test_again(shelf: Shelf) -> None:
    """Only what has changed is written, by the change itself; what is no longer offered is removed."""
    shelf.modules()
    before = shelf.files
    assert (shelf.data()["written"], shelf.files) == ([], before)
    shelf("promote", "pytorch", "24.12-hd-r2", "prod")
    shelf("retire", "pytorch:24.12-hd-r1", "cpu:24.12-hd-r1", "--yes")
    after = shelf.files
    assert sorted(before.keys() - after.keys()) == [
        ".commands/ctrain-cpu/24.12-hd-r1/ctrain-cpu",
        ".commands/ctrain-pytorch/24.12-hd-r1/ctrain-pytorch",
        "ctrain-cpu/.modulerc",
        "ctrain-cpu/.modulerc.lua",
        "ctrain-cpu/24.12-hd-r1",
        "ctrain-cpu/24.12-hd-r1.lua",
        "ctrain-pytorch/24.12-hd-r1",
        "ctrain-pytorch/24.12-hd-r1.lua",
    ]
    assert not (shelf.output / "ctrain-cpu").exists()
    assert not (shelf.output / ".commands/ctrain-cpu").exists()
    assert after["ctrain-pytorch/.modulerc"] != before["ctrain-pytorch/.modulerc"]
    done = shelf.data()
    assert (done["written"], done["removed"], shelf.files) == ([], [], after)


def test_files_of_others_stay(shelf: Shelf) -> None:
    shelf.modules()
    other = shelf.output / "ctrain-cpu/24.12-hd-r9"
    other.write_text("#%Module1.0\n")
    theirs = shelf.output / "ctrain-cpu/24.12-hd-r8"
    theirs.write_text(shelf.files["ctrain-cpu/24.12-hd-r1"].replace(str(shelf.root), "/other/store"))
    link = shelf.output / "ctrain-cpu/link"
    link.symlink_to("24.12-hd-r1")
    (shelf.output / "README").write_text("ours\n")
    shelf("retire", "cpu:24.12-hd-r1", "--yes")
    shelf.modules()
    assert sorted((shelf.output / "ctrain-cpu").iterdir()) == sorted([other, theirs, link])
    assert (shelf.output / "README").exists()


@pytest.mark.parametrize("kind", ["file", "binary", "folder", "link", "dangling link"])
def test_nothing_is_written_over_what_others_made(shelf: Shelf, kind: str) -> None:
    place = shelf.output / "ctrain-pytorch/24.12-hd-r2.lua"
    place.parent.mkdir(parents=True)
    (shelf.output / "else").write_text("#%Module1.0\n")
    {
        "file": lambda: place.write_text('-- mine\nhelp("x")\n'),
        "binary": lambda: place.write_bytes(b"\xff\xfe\n"),
        "folder": place.mkdir,
        "link": lambda: place.symlink_to("../else"),
        "dangling link": lambda: place.symlink_to("nowhere"),
    }[kind]()
    before = sorted(shelf.output.rglob("*"))
    said = shelf.modules(code=76)
    assert said == (
        f"ctrain: {place} was not made by `ctrain store modules` for store {shelf.root}."
        " Choose another directory, or remove it\n"
    )
    assert sorted(shelf.output.rglob("*")) == before


@pytest.mark.usefixtures("strict_umask")
@pytest.mark.parametrize(("mode", "folder", "file"), [(None, 0o755, 0o444), (0o2775, 0o2775, 0o444)])
def test_modes_are_those_of_the_output(shelf: Shelf, mode: int, folder: int, file: int) -> None:
    if mode:
        shelf.output.mkdir()
        shelf.output.chmod(mode)
    shelf.modules()
    modes = {path.stat().st_mode & 0o7777 for path in shelf.output.rglob("*") if path.is_dir()}
    assert modes == {folder}
    modes = {path: path.stat().st_mode & 0o7777 for path in shelf.output.rglob("*") if path.is_file()}
    assert {mode for path, mode in modes.items() if ".commands" in path.parts} == {file | 0o111}
    assert {mode for path, mode in modes.items() if ".commands" not in path.parts} == {file}


def test_damaged_and_strange_versions_are_left_out_and_named(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    (shelf.root / "pytorch_24.12-hd-py3-r2.json").write_text("{")
    write_image(shelf.root, name="$(x)")
    assert main(BUILD_VERBS, ["store", "modules", "--store", str(shelf.root), "--output", str(shelf.output)]) == 0
    said = capsys.readouterr()
    assert "pytorch_24.12-hd-py3-r2.json is not a manifest" in said.err
    assert "/$(x)_24.12-hd-py3-r3.sif gets no module: its name does not have ctrain's form" in said.err
    assert len(said.out.splitlines()) == 5


def test_a_store_whose_path_no_shell_would_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_store(tmp_path / "a\nb", *IMAGES)
    assert main(BUILD_VERBS, ["store", "modules", "--store", str(root), "--output", str(tmp_path / "out")]) == 76
    assert "has control characters in its path" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_can_not_be_written(shelf: Shelf) -> None:
    shelf.output.write_text("a file\n")
    assert f"{shelf.output}" in shelf.modules(code=76)


def test_a_store_without_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf = Shelf(tmp_path, capsys)
    write_store(shelf.root)
    assert shelf.modules() == f"0 files written, 0 removed; for users: module use {shelf.output}\n"

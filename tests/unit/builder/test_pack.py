from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
from pathlib import Path, PurePosixPath
from typing import Optional

import pytest

from ctrain_builder.layers import host_tools, pack
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError
from samples.programs import write_program

EPOCH = 1_600_000_000
STARTED = 1_700_000_000


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with a mksquashfs that writes its time and its arguments into the file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_program(folder / "mksquashfs", '#!/bin/sh\necho $SOURCE_DATE_EPOCH "$@" >"$2"\n')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def _container(work: Path, root: bool = True) -> Container:
    work.mkdir(parents=True)
    (work / "started").touch()
    os.utime(work / "started", (STARTED, STARTED))
    return Container(Engine("apptainer", "/usr/bin/apptainer", "1.4.5"), work, lambda: None, root=root)


def _tree(folder: Path, *times: int) -> Path:
    folder.mkdir()
    for number, time in enumerate(times):
        (folder / str(number)).touch()
        os.utime(folder / str(number), (time, time))
    return folder


@pytest.mark.parametrize(
    ("times", "cut"),
    [
        ((STARTED + 10, STARTED), EPOCH),  # written by the build
        ((EPOCH - 10, STARTED + 10), EPOCH),
        ((EPOCH + 10, STARTED + 10), EPOCH + 10),  # brought along: some .pyc may tell that time
    ],
)
@pytest.mark.usefixtures("tools")
def test_times_are_cut_off_at_the_epoch_but_not_those_that_were_brought_along(
    tmp_path: Path, times: tuple[int, ...], cut: int
) -> None:
    container = _container(tmp_path / "work")
    packed = pack.pack_base(container, _tree(tmp_path / "root", *times), tmp_path / "log", EPOCH)
    assert packed.read_text().split()[0] == str(cut)


@pytest.mark.usefixtures("tools")
def test_the_command_of_a_layer_does_not_depend_on_its_content(tmp_path: Path) -> None:
    container, below = _container(tmp_path / "work"), LowerLayers(tmp_path / "base.sif")
    upper = _tree(tmp_path / "upper", EPOCH)
    (upper / ".wh.gone").touch()
    packed = pack.pack(container, upper, below, tmp_path / "log", EPOCH)
    assert packed.read_text().split()[1:] == " ".join(pack.layer_argv(container, upper, below)[1:]).split()
    assert (tmp_path / "work" / "lend" / "deleted").read_text() == "gone c 0 0 0 0 0\n"


@pytest.mark.parametrize(
    ("compression", "words"),
    [
        ("gzip", "-comp gzip -Xcompression-level 4"),
        ("zstd", "-comp zstd -Xcompression-level 3"),
        ("lz4", "-comp lz4"),
    ],
)
@pytest.mark.usefixtures("tools")
def test_all_is_packed_by_the_compression_that_was_asked_for(tmp_path: Path, compression: str, words: str) -> None:
    container, root = _container(tmp_path / "work"), _tree(tmp_path / "root", EPOCH)
    base = pack.base_argv(container, root, compression)
    layer = pack.layer_argv(container, root, LowerLayers(tmp_path / "base.sif"), compression)
    assert all(f" {words} " in " ".join(argv) for argv in (base, layer))


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize(
    ("text", "modified", "refused"),
    [
        ("a s3cret", None, True),
        ("http://kim:s3cret@proxy", None, True),
        ("http://kim:s3cret@proxy", (0, 0), True),  # as by `touch -d @0`
        ("a s3cret", (0, 0), False),  # as in a file of a package, which happens to have the word
    ],
)
def test_a_layer_with_a_password_of_the_build_host_is_refused(
    tmp_path: Path, text: str, modified: Optional[tuple[int, int]], refused: bool
) -> None:
    container = dataclasses.replace(_container(tmp_path / "work"), secrets=("kim:s3cret@", "s3cret"))
    upper = _tree(tmp_path / "upper", STARTED)
    (upper / "0").write_text(text)
    os.utime(upper / "0", modified)
    expected = pytest.raises(BuildError, match="/0 of the layer holds a password")
    with expected if refused else contextlib.nullcontext():
        pack.pack(container, upper, LowerLayers(tmp_path / "base.sif"), tmp_path / "log", EPOCH)


@pytest.mark.usefixtures("tools")
def test_odd_names_of_deleted_files(tmp_path: Path) -> None:
    container, below = _container(tmp_path / "work"), LowerLayers(tmp_path / "base.sif")
    upper = _tree(tmp_path / "upper")
    for name in ('two words"', "line\nend", "#x", os.fsdecode(b"\xff")):
        (upper / f".wh.{name}").touch()
    packed = pack.pack(container, upper, below, tmp_path / "log", EPOCH)
    deleted = (tmp_path / "work" / "lend" / "deleted").read_bytes()
    assert deleted == b'\\#x c 0 0 0 0 0\ntwo\\ words\\" c 0 0 0 0 0\n\xff c 0 0 0 0 0\n'
    assert "-p line\\\nend c 0 0 0 0 0 -pf" in packed.read_text()


@pytest.mark.usefixtures("tools")
def test_an_ordinary_user_packs_as_root_of_a_container(tmp_path: Path) -> None:
    work = tmp_path / "work"
    argv = pack.layer_argv(_container(work, root=False), work / "overlay/upper", LowerLayers(tmp_path / "base.sif"))
    assert argv[0] == "/usr/bin/apptainer"
    place = argv.index(str(tmp_path / "base.sif"))
    binds = {f"{work}/lend:/.ctrain", f"{work}/overlay/upper:/.ctrain/root"}
    assert {"--fakeroot", *binds} < set(argv[:place])
    assert argv[place + 1 : place + 4] == [*("/.ctrain/tools/mksquashfs", "/.ctrain/root", "/.ctrain/packed.sqsh")]


def test_without_mksquashfs_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="mksquashfs is not on PATH") as caught:
        pack.base_argv(_container(tmp_path / "work"), tmp_path)
    assert caught.value.hint == "Install squashfs-tools"


def test_a_lent_program_runs_with_its_own_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any place: nothing of the machine's own is found by its usual name."""
    program = host_tools.require_tool("ls", "coreutils")
    container = _container(tmp_path / "work")
    host_tools.prepare(container)
    host_tools.copy_tool(container, program)
    monkeypatch.setattr(host_tools, "INSIDE", str(tmp_path / "work" / "lend"))
    argv = host_tools.argv(program)
    said = subprocess.run(
        [*argv, str(tmp_path / "work" / "lend" / "tools")], capture_output=True, text=True, check=True
    ).stdout
    assert {"ls", *(PurePosixPath(word).name for word in argv if "/ld" in word)} <= set(said.split())
    assert any(name.startswith("libc.so") for name in said.split())

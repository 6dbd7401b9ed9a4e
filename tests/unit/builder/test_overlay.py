from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Optional

import pytest

from ctrain_builder.definitions.definition import Section
from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import overlay
from ctrain_builder.layers.layer import script_argv
from ctrain_runtime.errors import BuildError


def _paths(*names: str) -> frozenset[PurePosixPath]:
    return frozenset(map(PurePosixPath, names))


def test_scan_sorts_marks_from_content(tmp_path: Path) -> None:
    for name in ("a/.wh..opq", "a/new", "b/.wh.gone", "b/c/.wh..wh..opq"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/link").symlink_to("c")
    assert overlay.scan(Tree(tmp_path)) == overlay.Upper(
        directories=_paths("a", "b", "b/c"),
        others=_paths("a/new", "b/link"),
        opaque=_paths("a", "b/c"),
        deleted=_paths("b/gone"),
    )


def _attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError:
        pytest.skip("this file system has no user attributes")


def test_an_overlays_own_attributes_are_read_and_then_removed(tmp_path: Path) -> None:
    for name in ("opaque", "merged"):
        (tmp_path / name).mkdir()
    for name in ("copied", "mine"):
        (tmp_path / name).write_text("")
    _attribute(tmp_path / "opaque", "user.fuseoverlayfs.opaque", b"y")
    _attribute(tmp_path / "merged", "user.overlay.impure", b"y")
    _attribute(tmp_path / "copied", "user.overlay.origin", b"")
    _attribute(tmp_path / "copied", "user.mine", b"kept")
    _attribute(tmp_path / "mine", "user.origin", b"kept")
    (tmp_path / "copied").chmod(0o444)
    found = overlay.scan(Tree(tmp_path))
    assert (found.opaque, found.copied) == (_paths("opaque"), _paths("copied"))
    assert found.marked == _paths("opaque", "merged", "copied")
    overlay.remove_marks(Tree(tmp_path), found)
    assert {path.name: os.listxattr(path) for path in tmp_path.iterdir()} == {
        "opaque": [],
        "merged": [],
        "copied": ["user.mine"],
        "mine": ["user.origin"],
    }
    assert (tmp_path / "copied").stat().st_mode & 0o777 == 0o444


def test_a_folder_that_cant_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, *, dir_fd: Optional[int] = None) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, dir_fd=dir_fd)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BuildError, match=f"{tmp_path}/closed of a layer can't be read by its own user"):
        overlay.scan(Tree(tmp_path))


def test_attributes_that_can_not_be_read_are_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, _name: str, **_options: bool) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / "closed").mkdir()
    _attribute(tmp_path / "closed", "user.fuseoverlayfs.opaque", b"y")
    monkeypatch.setattr(os, "getxattr", refuse)
    with pytest.raises(BuildError, match=f"{tmp_path}/closed of a layer can't be read by its own user"):
        overlay.scan(Tree(tmp_path))


def test_an_opaque_folder_becomes_one_mark_for_each_hidden_name() -> None:
    upper = overlay.Upper(
        directories=_paths("d", "d/sub"), others=_paths("d/new", "d/file"), opaque=_paths("d"), deleted=_paths("e/x")
    )
    below = _paths("d/old", "d/sub", "d/sub/deep", "d/tree", "d/tree/leaf", "d/file", "d/file/was-a-folder")
    # d/tree hides its leaf; d/file is no folder any more
    assert overlay.whiteouts(upper, below) == sorted(_paths("d/old", "d/sub/deep", "d/tree", "e/x"))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("", ["/bin/sh", "-ex", "/s"]),
        ("-u", ["/bin/sh", "-ex", "-u", "/s"]),
        ("-c /bin/bash -e", ["/bin/sh", "-ex", "-c", "/bin/bash -e /s"]),
    ],
)
def test_the_arguments_of_a_section_choose_its_interpreter(args: str, expected: list[str]) -> None:
    assert script_argv(Section(args, ""), "/s") == expected

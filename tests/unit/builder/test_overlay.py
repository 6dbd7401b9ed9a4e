from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from ctrain_builder.definition import Section
from ctrain_builder.make import overlay
from ctrain_builder.make.layer import script_argv


def _paths(*names: str) -> frozenset[PurePosixPath]:
    return frozenset(map(PurePosixPath, names))


def test_scan_sorts_marks_from_content(tmp_path: Path) -> None:
    for name in ("a/.wh..opq", "a/new", "b/.wh.gone", "b/c/.wh..wh..opq"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b/link").symlink_to("c")
    assert overlay.scan(tmp_path) == overlay.Upper(
        folders=_paths("a", "b", "b/c"),
        others=_paths("a/new", "b/link"),
        opaque=_paths("a", "b/c"),
        deleted=_paths("b/gone"),
    )


def test_an_opaque_folder_becomes_one_mark_for_each_hidden_name() -> None:
    upper = overlay.Upper(
        folders=_paths("d", "d/sub"), others=_paths("d/new", "d/file"), opaque=_paths("d"), deleted=_paths("e/x")
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

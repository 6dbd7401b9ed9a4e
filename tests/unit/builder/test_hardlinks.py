from __future__ import annotations

from pathlib import PurePosixPath

from ctrain_builder.layers import hardlinks
from ctrain_builder.layers.overlay import Upper


def _paths(*names: str) -> frozenset[PurePosixPath]:
    return frozenset(map(PurePosixPath, names))


def _missing(upper: Upper, *names: str) -> list[str]:
    return [f"{one} {other}" for one, other in hardlinks.links_to_restore(upper, [sorted(_paths(*names))])]


def test_the_other_names_of_a_changed_file_are_linked_to_it() -> None:
    upper = Upper(directories=_paths("d"), others=_paths("d/a"), copied=_paths("d/a"))
    assert _missing(upper, "b", "d/a", "e/c") == ["d/a b", "d/a e/c"]


def test_names_that_are_gone_or_other_files_now_are_not() -> None:
    upper = Upper(
        directories=_paths("new", "again"),
        others=_paths("a", "whiteout", "link", "again/here"),
        opaque=_paths("again"),
        deleted=_paths("removed", "folder"),
        copied=_paths("a"),
    )
    names = ("a", "whiteout", "whiteout/x", "link/x", "again/x", "again/deep/x", "removed", "folder/x", "new/x")
    assert _missing(upper, *names) == ["a new/x"]


def test_two_names_that_were_both_changed_stay_apart() -> None:
    upper = Upper(directories=_paths(), others=_paths("a", "b"), copied=_paths("a", "b"))
    assert _missing(upper, "a", "b", "c") == []

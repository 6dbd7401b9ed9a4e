from __future__ import annotations

import pytest

from ctrain_runtime.store.references import join, join_all


@pytest.mark.parametrize(
    ("words", "references"),
    [
        (["pytorch:24.12-hd-r3"], ["pytorch:24.12-hd-r3"]),
        (["pytorch", "24.12-hd-r3", "tiny", "1-s-r1-flat"], ["pytorch:24.12-hd-r3", "tiny:1-s-r1-flat"]),
        (["pytorch", "sha256:4f0c"], ["pytorch@sha256:4f0c"]),
        (["pytorch", "pytorch:24.12-hd-r3"], ["pytorch", "pytorch:24.12-hd-r3"]),
        (["pytorch", "tiny"], ["pytorch", "tiny"]),
        (["pytorch:prod", "24.12-hd-r3"], ["pytorch:prod", "24.12-hd-r3"]),
        (["pytorch", "./images/24.12-hd-r3"], ["pytorch", "./images/24.12-hd-r3"]),
        (["24.12-hd-r3"], ["24.12-hd-r3"]),
    ],
)
def test_a_version_is_one_word_or_two(words: list[str], references: list[str]) -> None:
    assert join_all(words) == references


def test_one_image_may_have_any_second_word() -> None:
    assert [join("pytorch", wanted) for wanted in (None, "prod", "sha256:4f0c")] == [
        *("pytorch", "pytorch:prod", "pytorch@sha256:4f0c"),
    ]

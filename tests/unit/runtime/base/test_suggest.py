from __future__ import annotations

import pytest

from ctrain_runtime.base.suggest import closest, suggest

OPTIONS = ("--nodes", "--name", "--gpus-per-node", "--ranks-per-node", "--layer", "--env", "--time", "--site")


@pytest.mark.parametrize(
    ("word", "candidates", "expected"),
    [
        ("--gpus", OPTIONS, "--gpus-per-node"),
        ("--node", OPTIONS, "--nodes"),
        ("-nodes", OPTIONS, "--nodes"),
        ("--num-nodes", OPTIONS, "--nodes"),
        ("--lr", OPTIONS, ""),
        ("--epochs", OPTIONS, ""),
        ("-n", OPTIONS, ""),
        ("rum", ("run", "images"), "run"),
        ("resnet5", ("digits", "resnet50"), "resnet50"),
        ("pytorch", ("pytorch-cpu", "pytorch-cpu-flat"), "pytorch-cpu"),
        ("partition", ("description", "resources"), ""),
        ("description", ("reservation", "partition"), ""),
        ("", ("run",), ""),
        ("run", (), ""),
    ],
)
def test_the_closest_word(word: str, candidates: tuple[str, ...], expected: str) -> None:
    assert closest(word, candidates) == expected


def test_the_order_of_the_candidates_decides_nothing() -> None:
    assert closest("a-", ("ab", "ac")) == closest("a-", ("ac", "ab"))


def test_the_question() -> None:
    assert suggest("nodse", ["nodes", "image"]) == "Did you mean 'nodes'?"
    assert suggest("x", ["nodes"]) == ""

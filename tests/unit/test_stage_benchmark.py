"""benchmarks/stage.py without its namespaces: how it computes, and what it says where it cannot run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from samples.benchmarks import load


@pytest.fixture(scope="module")
def stage() -> ModuleType:
    return load("stage")


def run(stage: ModuleType, monkeypatch: pytest.MonkeyPatch, chain: float) -> int:
    """The benchmark of 8 nodes whose links need 10 s for the image, with results that are given."""

    @contextlib.contextmanager
    def namespaces(count: int, megabits: int) -> Iterator[list[str]]:
        assert (count, megabits) == (9, 8)
        yield [f"n{number}" for number in range(count)]

    monkeypatch.setattr(stage, "namespaces", namespaces)
    monkeypatch.setattr(stage, "time_chain", lambda *_: chain)
    monkeypatch.setattr(stage, "time_shared", lambda *_: 81.0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(stage.shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(sys, "argv", ["stage.py", "--megabytes", "10", "--megabits", "8", "--json"])
    return int(stage.main())


@pytest.mark.parametrize(("chain", "code"), [(11.0, 0), (15.0, 0), (15.1, 1)])
def test_the_chain_is_compared_with_one_link(
    stage: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], chain: float, code: int
) -> None:
    assert run(stage, monkeypatch, chain) == code
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["limit_s"], result["chain_s"], result["shared_s"]) == (10.0, chain, 81.0)
    assert (result["ratio"], result["shared_ratio"]) == (chain / 10, 8.1)


def test_the_model_goes_to_512_nodes(stage: ModuleType) -> None:
    simulated = stage.summary(8, 10**9, 10**8, 11.0, 80.0)["simulated"]
    assert [figures["nodes"] for figures in simulated] == [8, 8, 32, 128, 512]
    assert all(figures["ratio"] < stage.LIMIT for figures in simulated)
    assert simulated[0]["shared_s"] == 80.0


def test_without_root_it_says_so(
    stage: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(stage.shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(sys, "argv", ["stage.py"])
    assert stage.main() == stage.CANNOT_RUN
    assert "it must run as root, for network namespaces" in capsys.readouterr().err

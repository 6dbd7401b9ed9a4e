"""Calls of W&B's documented library, on a stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from ctrain_runtime.errors import CtrainError
from ctrain_runtime.export import wandb
from samples.reports import a_subject


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    run = Namespace(
        url="https://wandb.example/p/one",
        define_metric=lambda name, **options: calls.append(("define_metric", name, options)),
        log=lambda values: calls.append(("log", values)),
        finish=lambda exit_code: calls.append(("finish", exit_code)),
    )

    def init(**options: Any) -> Any:
        calls.append(("init", options))
        return run

    monkeypatch.setitem(sys.modules, "wandb", Namespace(init=init, Settings=dict))
    return calls


def test_a_run_whose_curves_go_by_its_own_steps(tmp_path: Path, calls: list[Any]) -> None:
    metrics = '{"step": 9, "loss": 1}\n{"step": 8, "loss": 1.5}\n'
    subject = a_subject(tmp_path / "runs/one", 3, metrics=metrics)
    record = replace(subject.record, parameters={"lr": "0.1"})
    assert wandb.export(subject.run.path, record, "mine") == ("https://wandb.example/p/one", 2)
    (_, options), *rest = calls
    assert (options["project"], options["name"], options["resume"]) == ("mine", "one", "never")
    assert options["id"].startswith("one-")
    assert options["config"]["lr"] == "0.1"
    assert options["config"]["ctrain"]["outcome"] == "failed"
    assert options["config"]["ctrain"]["image_digest"] == record.image["digest"]
    assert rest == [
        ("define_metric", "step", {}),
        ("define_metric", "*", {"step_metric": "step"}),
        ("log", {"step": 9.0, "loss": 1.0}),
        ("log", {"step": 8.0, "loss": 1.5}),
        ("finish", 3),
    ]


def test_a_run_that_has_not_ended(tmp_path: Path, calls: list[Any]) -> None:
    subject = a_subject(tmp_path / "runs/one", 0)
    with pytest.raises(CtrainError, match="run one has not ended, and W&B takes a run once"):
        wandb.export(subject.run.path, replace(subject.record, exit=None), "")
    assert calls == []

"""Calls of MLflow's documented client, on a stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from ctrain_runtime.errors import CtrainError
from ctrain_runtime.export import mlflow
from samples.reports import a_subject

METRICS = '{"step": 1, "loss": 2.5, "time": 103.5}\n{"step": 2, "loss@val": 2}\n'


class Client:
    """Records what it is asked to do; the stores of runs and experiments are those of the test."""

    calls: list[tuple[Any, ...]]
    runs: list[Any]

    def __init__(self, tracking_uri: Any) -> None:
        self.calls.append(("client", tracking_uri))

    def get_experiment_by_name(self, name: str) -> Any:
        return Namespace(experiment_id="7") if name == "known" else None

    def create_experiment(self, name: str) -> str:
        self.calls.append(("create_experiment", name))
        return "8"

    def search_runs(self, experiments: list[str], filter_string: str) -> list[Any]:
        self.calls.append(("search_runs", experiments, filter_string))
        return self.runs

    def create_run(self, experiment: str, *, start_time: int, tags: dict[str, str], run_name: str) -> Any:
        self.calls.append(("create_run", experiment, start_time, tags["ctrain.image_digest"], run_name))
        return Namespace(info=Namespace(run_id="abc"))

    def log_batch(self, number: str, *, metrics: Any = (), params: Any = ()) -> None:
        self.calls.append(("log_batch", number, list(metrics), list(params)))

    def set_tag(self, number: str, key: str, value: str) -> None:
        self.calls.append(("set_tag", number, key, value))

    def set_terminated(self, number: str, *, status: str, end_time: int) -> None:
        self.calls.append(("set_terminated", number, status, end_time >= 0))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    made = type("Client", (Client,), {"calls": [], "runs": []})
    entities = Namespace(Metric=lambda *each: each, Param=lambda *each: each)
    monkeypatch.setitem(sys.modules, "mlflow", Namespace(MlflowClient=made, entities=entities))
    return made


def test_a_run_with_parameters_measures_and_end(tmp_path: Path, client: type[Client]) -> None:
    subject = a_subject(tmp_path / "runs/one", 3, metrics=METRICS)
    record = replace(subject.record, parameters={"lr": "0.1"}, start="1970-01-01T00:01:39+00:00", job="digits")
    place, count = mlflow.export(subject.run.path, record, "http://localhost:5000")
    assert (place, count) == ("digits abc", 2)
    identity = client.calls[2][2].split("'")[1]
    assert client.calls == [
        ("client", "http://localhost:5000"),
        ("create_experiment", "digits"),
        ("search_runs", ["8"], f"tags.`ctrain.id` = '{identity}'"),
        ("create_run", "8", 99000, record.image["digest"], "one"),
        ("log_batch", "abc", [], [("lr", "0.1")]),
        ("log_batch", "abc", [("loss", 2.5, 103500, 1), ("loss_val", 2.0, 103500, 2)], []),
        ("set_tag", "abc", "ctrain.id", identity),
        ("set_terminated", "abc", "FAILED", True),
    ]


def test_measures_go_in_batches_of_what_mlflow_takes(tmp_path: Path, client: type[Client]) -> None:
    lines = "".join(f'{{"step": {n}, "loss": 1, "rate": 2}}\n' for n in range(501))
    subject = a_subject(tmp_path / "runs/one", 0, metrics=lines)
    assert mlflow.export(subject.run.path, replace(subject.record, job="known"), "")[1] == 1002
    assert client.calls[0] == ("client", None)
    assert [len(call[2]) for call in client.calls if call[0] == "log_batch"] == [1000, 2]


def test_what_cannot_be_exported(tmp_path: Path, client: type[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    subject = a_subject(tmp_path / "runs/one", 0, metrics=METRICS)
    with pytest.raises(CtrainError, match="run one has not ended, and MLflow takes a run once"):
        mlflow.export(subject.run.path, replace(subject.record, exit=None), "")
    client.runs.append(Namespace(info=Namespace(run_id="old")))
    with pytest.raises(CtrainError, match="run one is in MLflow already: old"):
        mlflow.export(subject.run.path, subject.record, "")

    def refuse(*_: Any) -> None:
        raise ValueError("no such \x1b[2Jserver.\nfurther lines")

    monkeypatch.setattr(client, "get_experiment_by_name", refuse)
    with pytest.raises(CtrainError, match=r"^mlflow: no such  \[2Jserver\. Check the address"):
        mlflow.export(subject.run.path, subject.record, "")

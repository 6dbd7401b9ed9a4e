"""Runs of MLflow, by its client (mlflow.org, Python API, mlflow.client). Its limits: mlflow/utils/validation.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.export import facts
from ctrain_runtime.report.series import measures
from ctrain_runtime.run.record import Record

EXPERIMENT_TAG = "ctrain.id"  # written last: a run that has it is complete
BATCH, PARAMETERS = 1000, 100  # of one call at most
LONGEST_VALUE = 500  # of a parameter, by the oldest limit; a tag may have more
T = TypeVar("T")


def export(path: Path, record: Record, where: str) -> tuple[str, int]:
    """Make a run of the run in the directory `path`, in the experiment of its job. `where` is an URI of MLflow, "" for
    MLFLOW_TRACKING_URI. Returns its experiment and id, and how many values it has. Raises CtrainError."""
    code = facts.ended(record, "MLflow")
    with facts.errors_of("mlflow"):
        import mlflow

        client = mlflow.MlflowClient(tracking_uri=where or None)
        experiment = _experiment(client, record.job or "ctrain")
        identity = facts.identity(record)
        for known in client.search_runs([experiment], f"tags.`{EXPERIMENT_TAG}` = '{identity}'"):
            problem = f"run {record.run} is in MLflow already: {known.info.run_id}"
            raise CtrainError(problem, "Delete it there to export it again")
        tags = {f"ctrain.{name}": value for name, value in facts.tags(record).items()}
        begin = _milliseconds(facts.start(record))
        made = client.create_run(experiment, start_time=begin, tags=tags, run_name=record.run)
        number = made.info.run_id
        parameters = [mlflow.entities.Param(_key(k), v[:LONGEST_VALUE]) for k, v in record.parameters.items()]
        for some in _batches(iter(parameters), PARAMETERS):
            client.log_batch(number, params=some)
        count = 0
        for some in _batches(_metrics(mlflow.entities.Metric, path, record), BATCH):
            client.log_batch(number, metrics=some)
            count += len(some)
        client.set_tag(number, EXPERIMENT_TAG, identity)
        end = _milliseconds(facts.seconds(record.end) or facts.start(record))
        client.set_terminated(number, status=_status(record, code), end_time=end)
    return f"{record.job} {number}", count


def _experiment(client: Any, name: str) -> str:
    known = client.get_experiment_by_name(name)
    return str(known.experiment_id if known else client.create_experiment(name))


def _metrics(kind: Any, path: Path, record: Record) -> Iterator[Any]:
    begin = facts.start(record)
    for made in measures(path / run_files.METRICS):
        for key, value in made.values.items():
            yield kind(_key(key), value, _milliseconds(made.time or begin), int(made.step))


def _status(record: Record, code: int) -> str:
    cancelled = record.exit is not None and record.exit.by == "user"
    return "FINISHED" if code == 0 else "KILLED" if cancelled else "FAILED"


def _key(name: str) -> str:
    """`name` without the letters that MLflow refuses."""
    return re.sub(r"[^\w.\- /]", "_", name, flags=re.ASCII)[:250]


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _batches(each: Iterator[T], size: int) -> Iterator[Sequence[T]]:
    while some := list(islice(each, size)):
        yield some

"""A run exported to MLflow: its real client and a store of files on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from samples.kept import kept

CLIENT = "mlflow-skinny>=2,<3"  # newer ones keep nothing in files, and their databases need the whole of MLflow
PROGRAM = """\
import sys
from dataclasses import replace
from pathlib import Path

import mlflow
from ctrain_runtime.export import mlflow as to_mlflow
from samples.reports import a_subject

METRICS = '{"step": 1, "loss": 2.5, "time": 103.5}\\n{"step": 2, "loss": 2, "time": 104}\\n'
subject = a_subject(Path(sys.argv[1]) / "runs/one", 3, metrics=METRICS)
record = replace(subject.record, parameters={"lr": "0.1"}, start="1970-01-01T00:01:39+00:00", job="digits")
where = f"file:{sys.argv[1]}/mlruns"
assert to_mlflow.export(subject.run.path, record, where)[1] == 2
client = mlflow.MlflowClient(tracking_uri=where)
(run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
losses = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")]
print(run.info.run_name, run.info.status, run.data.params, losses)
"""


def test_a_run_in_a_local_mlflow(tmp_path: Path) -> None:
    def install(target: Path) -> None:
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target), CLIENT]
        subprocess.run(argv, check=True)

    packages = kept("mlflow", f"{CLIENT} {sys.version}", install)
    environment = {**os.environ, "PYTHONPATH": f"{packages}:{Path(__file__).parents[1]}"}
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.stdout == "one FAILED {'lr': '0.1'} [(1, 2.5), (2, 2.0)]\n", done.stderr

"""The API as programs use it: processes with the fake engine on site local; no process prints a word by itself."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ctrain
from ctrain_runtime.base import paths
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.runs import DEADLINE_SECONDS, Bench

DOCS = paths.data_dir("docs")
JOB = """\
command: [python3, train.py]
image: pytorch
launcher: env
resources: {gpus_per_node: 0, ranks_per_node: 1}
parameters: {lr: 0.1, steps: 2, code: 0}
"""
TRAIN = """\
import json, os, sys
settings = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("trains with", settings["--lr"])
with open(os.environ["CTRAIN_RUN_DIR"] + "/metrics.jsonl", "a") as metrics:
    for step in range(int(settings["--steps"])):
        metrics.write(json.dumps({"step": step + 1, "loss": float(settings["--lr"]) / (step + 1)}) + "\\n")
if settings["--code"] == "wait":
    os.execvp("sleep", ["sleep", "1000"])
sys.exit(int(settings["--code"]))
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A machine with the job ./train and an engine, for this process too."""
    bench = Bench(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train/job.yaml").write_text(JOB)
    (tmp_path / "train/train.py").write_text(TRAIN)
    bench.environment.update(CTRAIN_SITE="local", CTRAIN_RUNS=str(bench.runs), CTRAIN_IMAGE=str(bench.image))
    for name, value in bench.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return bench


def execute(bench: Bench, text: str) -> str:
    """The output of a program."""
    argv = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", text]
    settings = {"cwd": bench.folder, "env": bench.environment, "timeout": DEADLINE_SECONDS}
    result = subprocess.run(argv, capture_output=True, text=True, check=False, **settings)  # type: ignore[call-overload]  # of a dict
    assert result.returncode == 0, result.stderr
    return str(result.stdout)


@pytest.mark.usefixtures("bench")
def test_a_run_from_its_plan_to_its_result(capfd: pytest.CaptureFixture[str]) -> None:
    job = ctrain.Job("./train", parameters={"lr": 0.5}, name="one")
    plan = ctrain.plan(job)
    assert plan.command == ("python3", "train.py", "--lr", "0.5", "--steps", "2", "--code", "0")
    assert (plan.nodes, plan.ranks, plan.run_directory.exists()) == (1, 1, False)
    run = ctrain.submit(job)
    assert run.directory == plan.run_directory
    result = copy.deepcopy(run).wait(DEADLINE_SECONDS)
    assert (result.run, result.ending, result.code, result.completed) == ("one", "completed", 0, True)
    assert (result.last("loss"), result.parameters["lr"]) == (0.25, "0.5")
    assert (run.phase(), run.result(), run.cancel()) == ("ended", result, result)
    assert run.metrics() == list(result.metrics)
    assert run.log() == "trains with 0.5\n"
    with pytest.raises(ctrain.CtrainError, match="one has 1 ranks, from 0 on: no rank 1"):
        run.log(1)
    assert json.loads((run.directory / "record.json").read_text())["exit"] == result.record["exit"]
    with pytest.raises(KeyError, match=r"run one has no 'accuracy' in its metrics\.jsonl"):
        result.last("accuracy")
    assert ctrain.attach() == ctrain.attach("one") == ctrain.attach(run.directory) == run
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("bench")
def test_a_run_that_fails_and_one_that_is_cancelled() -> None:
    job = ctrain.Job("./train")
    failed = ctrain.submit(job.with_parameters(code=3)).wait(DEADLINE_SECONDS)
    assert (failed.ending, failed.code, failed.completed) == ("failed", 3, False)
    run = ctrain.submit(job.with_parameters(code="wait"))
    with pytest.raises(TimeoutError, match=f"run {run.name} has not ended within 0 s"):
        run.wait(0)
    assert run.result() is None
    cancelled = run.cancel()
    assert (cancelled.ending, cancelled.code) == ("cancelled", 130)
    assert run.result() == cancelled


@pytest.mark.usefixtures("bench")
def test_what_is_wrong_is_one_line() -> None:
    with pytest.raises(ctrain.CtrainError, match=r"job train has no parameter 'lrr'\. Did you mean 'lr'"):
        ctrain.submit(ctrain.Job("./train", parameters={"lrr": 1}))
    with pytest.raises(ctrain.CtrainError, match="parameter --lr=1: a parameter has no dashes here"):
        ctrain.plan(ctrain.Job("./train", parameters={"--lr": 1}))
    with pytest.raises(ctrain.CtrainError, match="'none' not found"):
        ctrain.attach("none")


@pytest.mark.usefixtures("bench")
def test_a_job_is_the_request_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    job = ctrain.Job("./train", command=["x"], parameters={"lr": 1}, time="90m", env={"A": "b"}, name="one")
    line = "--set lr=1 --time 90m --env A=b --name one --dry-run --json ./train -- x"
    assert main(RUNTIME_VERBS, ["run", *line.split()]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(ctrain.plan(job).data))


@pytest.mark.usefixtures("bench")
def test_a_variable_whose_value_is_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ctrain.Job("./train", env={"WORD": None})
    with pytest.raises(ctrain.CtrainError, match="--env WORD: not set in this shell"):
        ctrain.plan(job)
    monkeypatch.setenv("WORD", "hidden")
    data = ctrain.plan(job).data
    assert data["plan"]["environment"]["passed"] == ("WORD",)
    assert "hidden" not in json.dumps(data)


def test_the_notebook(bench: Bench) -> None:
    cells = json.loads((DOCS / "api.ipynb").read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    *texts, last = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    show = "\nprint(plan.ranks, result.ending, len(results), best.parameters['lr'])\nprint(message)"
    out = execute(bench, "\n".join([*texts, last, show])).splitlines()
    assert out == [
        "1 completed 3 0.3",
        "job descent has no parameter 'learning_rate'. Its parameters: lr, steps",
    ]


def test_the_lines_of_the_page(bench: Bench) -> None:
    pytest.importorskip("optuna", reason="an example needs Optuna")
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    site_packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    bench.environment["PYTHONPATH"] += f":{site_packages}"
    first, best = execute(bench, "\n".join(blocks)).splitlines()
    assert first == f"1 {0.1 / 3}"
    assert re.fullmatch(r"\{'lr': [\d.e-]+\}", best)
    assert len(list(bench.runs.iterdir())) == 3

"""The pipelines of .gitlab-ci.yml: valid by GitLab's own schema, with clean scripts that ask ctrain for what it has."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import check_jsonschema
import pytest
import yaml
from click.testing import CliRunner

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PLAN = {
    "images": [
        {"name": "pytorch-ngc", "tag": "24.12", "store_name": "pytorch", "default": True},
        {"name": "pytorch-ngc", "tag": "22.03", "store_name": "pytorch", "default": False},
    ]
}


def child(plan: dict[str, Any]) -> dict[str, Any]:
    """The pipeline that the job `plan` writes for a build plan."""
    argv = [sys.executable, str(CHECKOUT / ".gitlab/pipeline.py")]
    done = subprocess.run(argv, input=json.dumps(plan), capture_output=True, text=True, check=True)
    data = yaml.safe_load(done.stdout)
    assert isinstance(data, dict)
    return data


def parent() -> dict[str, Any]:
    data = yaml.safe_load((CHECKOUT / ".gitlab-ci.yml").read_text())
    assert isinstance(data, dict)
    return data


def jobs(pipeline: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: job for name, job in pipeline.items() if isinstance(job, dict) and {"script", "trigger"} & job.keys()}


def complaints(pipeline: dict[str, Any], folder: Path) -> str:
    """What GitLab's schema has against a pipeline; "" if nothing."""
    path = folder / "pipeline.yml"
    path.write_text(json.dumps(pipeline))
    options = ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]
    done = CliRunner().invoke(check_jsonschema.main, [*options, str(path)])
    return "" if done.exit_code == 0 else done.output


# They are made when a test runs: each worker of pytest imports this file.
PIPELINES: dict[str, Callable[[], dict[str, Any]]] = {
    "parent": parent,
    "child": lambda: child(PLAN),
    "nothing": lambda: child({"images": []}),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_gitlab_would_take_it(name: str, tmp_path: Path) -> None:
    pipeline = PIPELINES[name]()
    assert complaints(pipeline, tmp_path) == ""
    assert jobs(pipeline), "a pipeline without jobs fails"
    for title, job in jobs(pipeline).items():
        assert job.get("stage", "test") in pipeline.get("stages", ["test"]), title
        assert len(title) <= 255, "GitLab's limit"
        assert re.fullmatch(r"[\w./ ${}-]+", job.get("resource_group", "none")), "GitLab's characters"


@pytest.mark.parametrize(("key", "value"), [("when", "sometimes"), ("artifact", {}), ("timeout", 6), ("tags", "x")])
def test_the_schema_knows_mistakes(key: str, value: object, tmp_path: Path) -> None:
    broken = copy.deepcopy(child(PLAN))
    broken["build pytorch-ngc:24.12"][key] = value
    assert "validation errors" in complaints(broken, tmp_path)


def test_the_child_is_an_artifact_of_the_job_that_is_named() -> None:
    pipeline = parent()
    [include] = pipeline["images"]["trigger"]["include"]
    assert include["artifact"] in pipeline[include["job"]]["artifacts"]["paths"]
    assert any(f"> {include['artifact']}" in line for line in pipeline[include["job"]]["script"])


def test_each_image_has_its_channels_and_its_own_approval() -> None:
    pipeline = child(PLAN)
    assert {name: job["variables"] for name, job in jobs(pipeline).items() if name.startswith("promote")} == {
        "promote pytorch-ngc:24.12": {"IMAGE": "pytorch-ngc:24.12", "NAME": "pytorch", "DEV": "dev", "PROD": "prod"},
        "promote pytorch-ngc:22.03": {
            "IMAGE": "pytorch-ngc:22.03",
            "NAME": "pytorch",
            "DEV": "22.03-dev",
            "PROD": "22.03",
        },
    }
    for name, job in jobs(pipeline).items():
        if name.startswith("promote"):
            [needed] = job["needs"]
            assert needed == name.replace("promote", "publish")
            assert pipeline[needed]["artifacts"]["expire_in"] == "never", "an approval may come weeks later"
            assert (job["when"], "environment" in job) == ("manual", True)


def test_nothing_is_built_by_the_account_that_writes_to_the_store() -> None:
    builds = {
        name: "ctrain build" in " ".join(job["script"])
        for name, job in jobs(child(PLAN)).items()
        if job["tags"] == ["$CTRAIN_STORE_RUNNER"]
    }
    assert len(builds) == 4 and not any(builds.values())


def test_the_plan_is_one_that_ctrain_makes(tmp_path: Path) -> None:
    argv = [str(BIN / "ctrain"), "build", "--all", "--plan", "--json", "--offline", "--cache", str(tmp_path)]
    plan = json.loads(subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout)
    assert len(jobs(child(plan))) == 3 * len(plan["images"]) > 0


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not on PATH")
@pytest.mark.parametrize("name", ["parent", "child"])
def test_shellcheck_has_nothing_to_say(name: str) -> None:
    """GitLab runs the lines of a job as one script, with `set -eo pipefail`."""
    for job in jobs(PIPELINES[name]()).values():
        script = "\n".join(["#!/bin/bash", "set -eo pipefail", *job.get("script", []), ""])
        done = subprocess.run(["shellcheck", "--norc", "-"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_every_line_is_a_command_that_people_run_too() -> None:
    for pipeline in (parent(), child(PLAN)):
        for job in jobs(pipeline).values():
            for line in job.get("script", []):
                [command] = re.findall(r"^(?:\w+=\$\()?(\S+)", line)
                assert command in {"make", ".venv/bin/ctrain", ".venv/bin/python"}, line

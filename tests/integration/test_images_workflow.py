"""The way of an image through .github/workflows, on this machine: the same commands in the same order."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctrain_builder import cache as caches
from ctrain_builder.digests import of_file
from samples.cluster import Cluster

CHECKOUT = Path(__file__).parents[2]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
OUTPUT = re.compile(r"(?ms)^([\w-]+)<<(\S+)\n(.*?)\n\2\n")


@dataclass
class Runner:
    """Runs the `run:` steps of a job. `values` gives what each expression of a workflow is; others are an error."""

    folder: Path
    values: dict[str, Any]
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        return (self.folder / "summary").read_text()

    def value(self, text: object) -> str:
        return EXPRESSION.sub(lambda found: str(self.values[" ".join(found[1].split())]), str(text))

    def runs(self, step: Mapping[str, Any]) -> bool:
        condition = str(step.get("if", "${{ true }}"))
        found = EXPRESSION.fullmatch(condition)
        return "run" in step and bool(self.values[found[1] if found else condition])

    def job(self, workflow: str, name: str) -> None:
        """Run a job to its end. Raises CalledProcessError where the job would fail."""
        data = yaml.safe_load((CHECKOUT / ".github" / "workflows" / workflow).read_text())
        job = data["jobs"][name]
        settings = {**data.get("env", {}), **job.get("env", {})}
        for step in filter(self.runs, job["steps"]):
            output = self.folder / "output"
            output.write_text("")
            own = {**settings, **step.get("env", {})}
            env = {**os.environ, **{key: self.value(text) for key, text in own.items()}}
            env |= {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.folder / "summary")}
            bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            check = not step.get("continue-on-error", False)
            subprocess.run(bash, cwd=CHECKOUT, env=env, check=check, timeout=900)
            found = {key: text for key, _, text in OUTPUT.findall(output.read_text())}
            self.outputs |= {f"steps.{step['id']}.outputs.{key}": text for key, text in found.items()}


@pytest.fixture
def runner(cluster: Cluster, tmp_path: Path) -> Runner:  # noqa: ARG001  # with the cluster comes the image
    """A runner that has what GitHub would tell it before the first job, and the layers of this machine's cache."""
    values = {
        "true": True,
        "github.event_name != 'push'": False,
        "vars.PIP_EXTRA_INDEX_URL": "",
        "vars.CTRAIN_STORE": str(tmp_path / "store"),
        "inputs.large && vars.CTRAIN_CACHE || '/var/tmp/ctrain-ci'": caches.default_root(),
        "inputs.large && vars.CTRAIN_CACHE_SIZE || !inputs.large && '4GB' || ''": "",
    }
    return Runner(tmp_path, values)


def choose(runner: Runner, name: str) -> None:
    """Take the matrix entry of an image from the plan, and evaluate what images.yml gives to image.yml."""
    plan = json.loads(runner.outputs["steps.plan.outputs.plan"])
    [image] = [image for image in plan["images"] if image["name"] == name]
    entry = {f"matrix.image.{key}": value for key, value in image.items()}
    chosen = {
        **entry,
        "matrix.image.bootstrap == 'docker'": image["bootstrap"] == "docker",
        "matrix.image.default && 'dev' || format('{0}-dev', matrix.image.tag)": "dev" if image["default"] else "",
        "matrix.image.default && 'prod' || matrix.image.tag": "prod" if image["default"] else "",
    }
    given = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "images.yml").read_text())["jobs"]["image"]["with"]
    caller = Runner(runner.folder, chosen)
    runner.values |= {f"inputs.{key}": caller.value(text) for key, text in given.items()}
    runner.values |= {"inputs.large": False, "!inputs.large": True}


def take_over(runner: Runner) -> dict[str, Any]:
    """What the jobs after `build` get to know of it."""
    [image] = json.loads(runner.outputs["steps.build.outputs.built"])["images"]
    built = "fromJSON(needs.build.outputs.built).images[0]"
    runner.values |= {f"{built}.path": image["path"], f"{built}.manifest.digest": image["manifest"]["digest"]}
    assert isinstance(image, dict)
    return image


def published(store: Path) -> dict[str, Any]:
    argv = [str(CHECKOUT / ".venv" / "bin" / "ctrain"), "images", "--store", str(store), "--json"]
    [image] = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)["images"]
    assert isinstance(image, dict)
    return image


def test_an_image_goes_from_the_plan_to_prod(runner: Runner) -> None:
    store = runner.folder / "store"
    runner.job("images.yml", "plan")
    choose(runner, "pytorch-cpu")
    assert "    pytorch-cpu 2.13.0" in runner.summary

    runner.job("image.yml", "build")
    image = take_over(runner)
    assert not image["fresh"], "the cluster's image is that of this checkout"
    assert "1 image up to date, nothing to build" in runner.summary

    runner.job("image.yml", "dev")
    first = published(store)
    assert (first["release"], first["channels"]) == (1, ["dev"])
    assert first["digest"] == of_file(Path(image["path"])), "what was built is what was published"
    assert "store does not exist" in runner.summary, "there was nothing to compare with"
    assert "channel dev of pytorch-cpu is now 2.13.0-hd-r1" in runner.summary

    runner.job("image.yml", "prod")
    assert published(store)["channels"] == ["dev", "prod"]
    assert len(list(store.glob("*.sif"))) == 1
    assert "channel prod of pytorch-cpu is now 2.13.0-hd-r1" in runner.summary


def test_the_next_image_is_compared_and_an_old_approval_does_not_count(runner: Runner) -> None:
    runner.job("images.yml", "plan")
    choose(runner, "pytorch-cpu")
    runner.job("image.yml", "build")
    take_over(runner)
    runner.job("image.yml", "dev")
    (runner.folder / "summary").write_text("")
    runner.job("image.yml", "dev")
    assert "packages: 0 added, 0 removed, 0 changed" in runner.summary
    assert "is the same image; no new version" in runner.summary
    runner.values["fromJSON(needs.build.outputs.built).images[0].manifest.digest"] = "sha256:0123"
    with pytest.raises(subprocess.CalledProcessError):
        runner.job("image.yml", "prod")
    assert published(runner.folder / "store")["channels"] == ["dev"]

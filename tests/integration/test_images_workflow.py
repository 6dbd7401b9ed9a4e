"""The way of an image through .github/workflows and .gitlab-ci.yml, by the same commands in the same order.

The image is tiny and real, of definitions that CTRAIN_DEFINITIONS names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctrain_builder.store.init import init_store
from ctrain_runtime.base.digest import file_digest
from samples import tiny
from samples.long_mode import LONG

CHECKOUT = Path(__file__).parents[2]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
OUTPUT = re.compile(r"(?ms)^([\w-]+)<<(\S+)\n(.*?)\n\2\n")
IMAGES = """\
images:
  small:
    store_name: tiny
    chain: [base, upper]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
    tags: {"1.0": {}, "0.9": {}}
"""
BASE = """\
Bootstrap: localimage
From: SIF

%arguments
    VERSION=1.0

%labels
    version {{ VERSION }}
"""
UPPER = """\
Bootstrap: localimage
From: {{ PARENT }}

%post
    echo 1 > /opt/round

%test
    cat /opt/round
"""


@dataclass
class Machine:
    """What CI lends its jobs: a folder for what they leave, the site's store and cache."""

    folder: Path
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def environment(self) -> dict[str, str]:
        own = {"CTRAIN_STORE": str(self.store), "CTRAIN_CACHE": str(self.folder / "cache"), "CTRAIN_SITE": "local"}
        return {**os.environ, **own, "CTRAIN_DEFINITIONS": str(self.folder / "definitions")}

    def bash(self, script: str, cwd: Path, settings: Mapping[str, str]) -> str:
        """Raises CalledProcessError where the job would fail."""
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        env = {**self.environment, **settings}
        return subprocess.run(bash, cwd=cwd, env=env, check=True, timeout=900, stdout=subprocess.PIPE, text=True).stdout

    def change(self) -> None:
        """Commit a change of the upper layer."""
        definition = self.folder / "definitions/upper/upper.def"
        definition.write_text(definition.read_text().replace("echo ", "echo 1"))

    def images(self) -> list[dict[str, Any]]:
        """The published images, the oldest first."""
        argv = [str(Path(sys.executable).with_name("ctrain")), "images", "--json"]
        done = subprocess.run(argv, env=self.environment, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)["images"]
        assert isinstance(found, list)
        return found

    def channels(self) -> dict[str, list[str]]:
        return {f"{image['tag']}-r{image['release']}": image["channels"] for image in self.images()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    sif = tiny.sif(tmp_path / "tiny.sif", tiny.SHELL)
    for name, text in {
        "images.yaml": IMAGES,
        "base/base.def": BASE.replace("SIF", str(sif)),
        "upper/upper.def": UPPER,
    }.items():
        (tmp_path / "definitions" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "definitions" / name).write_text(text)
    init_store(tmp_path / "store")
    return Machine(tmp_path)


class GitHub:
    """Runs the `run:` steps of a job. `values` gives what each expression of a workflow is; others are an error."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.values: dict[str, Any] = {
            "true": True,
            "github.event_name != 'push'": False,
            "github.token": "",
            "vars.CTRAIN_STORE == ''": False,
            "vars.CTRAIN_STORE": str(machine.store),
            "vars.CTRAIN_CACHE || '/var/tmp/ctrain-ci'": machine.environment["CTRAIN_CACHE"],
            "vars.CTRAIN_SIGN_KEY": "",
            "vars.CTRAIN_LAYER_CACHE": "",
            "vars.CTRAIN_LAYER_CACHE != ''": False,
            "!inputs.large && startsWith(vars.CTRAIN_LAYER_CACHE, 'oras://ghcr.io/')": False,
            "vars.PIP_EXTRA_INDEX_URL": "",
            "inputs.large && vars.CTRAIN_CACHE || '/var/tmp/ctrain-ci'": machine.environment["CTRAIN_CACHE"],
            "inputs.large && vars.CTRAIN_CACHE_SIZE || !inputs.large && '4GB' || ''": "",
            "inputs.large": False,
            "!inputs.large": True,
        }
        self.outputs: dict[str, str] = {}

    @property
    def summary(self) -> str:
        return (self._machine.folder / "summary").read_text()

    def value(self, text: object) -> str:
        return EXPRESSION.sub(lambda found: str(self.values[" ".join(found[1].split())]), str(text))

    def runs(self, step: Mapping[str, Any]) -> bool:
        condition = str(step.get("if", "${{ true }}"))
        found = EXPRESSION.fullmatch(condition)
        return "run" in step and bool(self.values[found[1] if found else condition])

    def job(self, workflow: str, name: str) -> None:
        """Run a job to its end. Raises CalledProcessError where the job would fail."""
        data = yaml.safe_load((CHECKOUT / ".github" / "workflows" / workflow).read_text())
        job, folder = data["jobs"][name], self._machine.folder
        settings = {**data.get("env", {}), **job.get("env", {})}
        for step in filter(self.runs, job["steps"]):
            output = folder / "output"
            output.write_text("")
            env = {key: self.value(text) for key, text in {**settings, **step.get("env", {})}.items()}
            env |= {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
            try:
                self._machine.bash(step["run"], CHECKOUT, env)
            except subprocess.CalledProcessError:
                if not step.get("continue-on-error", False):
                    raise
            found = {key: text for key, _, text in OUTPUT.findall(output.read_text())}
            self.outputs |= {f"steps.{step['id']}.outputs.{key}": text for key, text in found.items()}

    def plan(self) -> list[dict[str, Any]]:
        """Run the job `plan`. Returns the matrix."""
        self.job("images.yml", "plan")
        matrix = json.loads(self.outputs["steps.plan.outputs.plan"])["images"]
        assert isinstance(matrix, list)
        return matrix

    def choose(self, image: Mapping[str, Any]) -> None:
        """Take an entry of the matrix, and evaluate what images.yml gives to image.yml."""
        caller = GitHub(self._machine)
        caller.values = {f"matrix.image.{key}": value for key, value in image.items()}
        cached = (
            "contains(fromJSON(needs.plan.outputs.cached), "
            "format('ctrain-{0}-{1}-{2}', matrix.image.name, matrix.image.tag, matrix.image.key))"
        )
        caller.values |= {
            cached: False,
            "matrix.image.bootstrap != 'debootstrap'": False,
            "matrix.image.default && 'dev' || format('{0}-dev', matrix.image.tag)": "dev"
            if image["default"]
            else "old",
            "matrix.image.default && 'prod' || matrix.image.tag": "prod" if image["default"] else image["tag"],
        }
        given = yaml.safe_load((CHECKOUT / ".github" / "workflows" / "images.yml").read_text())["jobs"]["image"]["with"]
        self.values |= {f"inputs.{key}": caller.value(text) for key, text in given.items()}
        self.values |= {"inputs.large": False}

    def build(self) -> dict[str, Any]:
        self.job("image.yml", "build")
        [image] = json.loads(self.outputs["steps.build.outputs.built"])["images"]
        built = "fromJSON(needs.build.outputs.built).images[0]"
        self.values |= {f"{built}.path": image["path"], f"{built}.manifest.digest": image["manifest"]["digest"]}
        assert isinstance(image, dict)
        return image

    def publish(self) -> str:
        """Run the job `dev`. Returns the digest that an approval of it counts for."""
        self.job("image.yml", "dev")
        digest = json.loads(self.outputs["steps.publish.outputs.version"])["manifest"]["digest"]
        assert isinstance(digest, str)
        return digest

    def approve(self, digest: str) -> None:
        self.values["fromJSON(needs.dev.outputs.version).manifest.digest"] = digest
        self.job("image.yml", "prod")


def test_an_image_goes_from_the_plan_to_prod_and_is_not_built_again(machine: Machine) -> None:
    github = GitHub(machine)
    preferred, other = github.plan()
    assert (preferred["tag"], other["tag"]) == ("1.0", "0.9")
    github.choose(preferred)
    image = github.build()
    assert image["fresh"]
    digest = github.publish()
    assert machine.channels() == {"1.0-r1": ["dev"]}
    assert digest == machine.images()[0]["digest"] == file_digest(Path(image["path"])), (
        "what was built is what was published"
    )
    assert "Available:" in github.summary or "not found" in github.summary, "there was nothing to compare with"
    github.approve(digest)
    assert machine.channels() == {"1.0-r1": ["dev", "prod"]}
    assert "channel prod" in github.summary
    assert [image["tag"] for image in github.plan()] == ["0.9"], "the next night does not look at it"


def test_a_late_approval_promotes_what_was_tested_then(machine: Machine) -> None:
    """Weeks later, with a newer version in dev, another image in the builder's cache, or none at all."""
    github = GitHub(machine)
    github.choose(github.plan()[0])
    github.build()
    first = github.publish()
    machine.change()
    github.choose(github.plan()[0])
    github.build()
    second = github.publish()
    assert first != second
    assert "packages: 0 added, 0 removed, 0 changed" in github.summary
    subprocess.run(["rm", "-rf", machine.environment["CTRAIN_CACHE"]], check=True)
    github.approve(first)
    assert machine.channels() == {"1.0-r1": ["prod"], "1.0-r2": ["dev"]}
    with pytest.raises(subprocess.CalledProcessError):
        github.approve("sha256:0123")
    assert machine.channels() == {"1.0-r1": ["prod"], "1.0-r2": ["dev"]}


def test_the_publishing_account_installs_what_has_a_known_hash(tmp_path: Path) -> None:
    names = (
        "Makefile",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        ".ci",
        "builder",
        "runtime",
        "definitions",
        "examples",
    )
    for name in names:
        (tmp_path / name).symlink_to(CHECKOUT / name)

    def install() -> subprocess.CompletedProcess[str]:
        make = ["make", ".venv", "HASHES=yes"]
        return subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    if LONG:  # by day, test_workflows.py has that each package is named with its hash
        done = install()
        assert done.returncode == 0, done.stderr
        argv = [tmp_path / ".venv/bin/ctrain", "--version"]
        assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout.startswith("ctrain ")
    requirements = (CHECKOUT / ".ci/requirements.txt").read_text()
    (tmp_path / ".ci").unlink()
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/requirements.txt").write_text(re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", requirements))
    subprocess.run(["rm", "-rf", tmp_path / ".venv"], check=True)
    done = install()
    assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr


def test_gitlab_does_the_same(machine: Machine, tmp_path: Path) -> None:
    """Each job runs in the checkout; artifacts go from one to the next."""
    work = tmp_path / "work"
    work.mkdir()
    for name in (*CHECKOUT.iterdir(),):
        (work / name.name).symlink_to(name)

    key = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)

    def run(job: Mapping[str, Any]) -> str:
        settings = {"CTRAIN_SIGN_KEY": str(key), **job.get("variables", {})}
        return machine.bash("\n".join(job["script"]), work, settings)

    def plan() -> dict[str, Any]:
        run(yaml.safe_load((CHECKOUT / ".gitlab-ci.yml").read_text())["plan"])
        child = yaml.safe_load((work / "pipeline.yml").read_text())
        assert isinstance(child, dict)
        return child

    child = plan()
    for tag in ("1.0", "0.9"):
        run(child[f"build small:{tag}"])
        run(child[f"publish small:{tag}"])
        (work / "published.json").rename(tmp_path / f"{tag}.json")
    assert machine.channels() == {"1.0-r1": ["dev"], "0.9-r1": ["0.9-dev"]}
    assert [image["signed"] for image in machine.images()] == [True, True]
    assert list(plan()) == ["stages", "variables", "nothing to build"]
    machine.change()
    newer = plan()
    run(newer["build small:1.0"])
    assert "packages: 0 added, 0 removed, 0 changed" in run(newer["publish small:1.0"])
    (tmp_path / "1.0.json").rename(work / "published.json")  # the artifact of the first pipeline
    run(child["promote small:1.0"])
    assert machine.channels() == {"1.0-r1": ["prod"], "0.9-r1": ["0.9-dev"], "1.0-r2": ["dev"]}

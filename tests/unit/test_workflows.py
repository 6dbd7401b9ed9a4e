"""The workflows of .github/workflows: what linters say of them, and that they ask ctrain for what it has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
WORKFLOWS = CHECKOUT / ".github" / "workflows"


def workflow(name: str) -> dict[str, Any]:
    data = yaml.safe_load((WORKFLOWS / name).read_text())
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize("lint", [("actionlint",), ("zizmor", "--offline", "--persona=auditor", str(WORKFLOWS))])
def test_linters_find_nothing(lint: tuple[str, ...]) -> None:
    argv = [str(Path(sys.executable).with_name(lint[0])), *lint[1:]]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_get_every_input_that_they_need() -> None:
    given = workflow("images.yml")["jobs"]["image"]["with"]
    called = workflow("image.yml")[True]["workflow_call"]["inputs"]  # YAML takes the word `on` for true
    assert set(given) == {name for name, declared in called.items() if declared["required"]} == set(called)


def test_the_matrix_takes_what_the_plan_tells(tmp_path: Path) -> None:
    ctrain = str(Path(sys.executable).with_name("ctrain"))
    argv = [ctrain, "build", "--all", "--plan", "--json", "--offline", "--cache", str(tmp_path)]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    images = json.loads(done.stdout)["images"]
    asked = set(re.findall(r"matrix\.image\.(\w+)", json.dumps(workflow("images.yml"))))
    assert asked >= {"name", "tag", "store_name", "key"}
    assert [image["name"] for image in images if not asked <= set(image)] == []
    # Two images of one name in the store must not meet in one channel.
    preferred = [image["store_name"] for image in images if image["default"]]
    assert len(preferred) == len(set(preferred)) == len({image["store_name"] for image in images})


def test_what_is_planned_for_its_old_base_is_built_on_a_new_one() -> None:
    """By the same age: else the job that builds would take the base for young enough, each night again."""
    texts = {name: (WORKFLOWS / name).read_text() for name in ("images.yml", "image.yml")}
    texts |= {name: (CHECKOUT / name).read_text() for name in (".gitlab-ci.yml", ".gitlab/image.yml")}
    ages = {name: re.findall(r"bin/ctrain build(?:.*--base-max-age (\d+))?", text) for name, text in texts.items()}
    assert ages == {name: ["30", "30"] for name in texts}


def test_nothing_is_built_by_the_account_that_writes_to_the_store() -> None:
    """Nor installed that its hash does not vouch for."""
    stores = [job for job in workflow("image.yml")["jobs"].values() if "CTRAIN_STORE_RUNNER" in job["runs-on"]]
    assert len(stores) == 2
    for job in stores:
        scripts = [step["run"] for step in job["steps"] if "run" in step]
        assert "make .venv HASHES=yes" in scripts and not any("ctrain build" in script for script in scripts)


def test_what_publishes_is_known_by_its_hash() -> None:
    """And no index is named in the file: sites have mirrors."""
    text = (CHECKOUT / ".ci" / "requirements.txt").read_text()
    pinned = re.findall(r"(?m)^([\w.-]+)==\S+.*((?:\\\n +--hash=sha256:[0-9a-f]{64} *)+)$", text)
    assert {name for name, _ in pinned} == set(re.findall(r"(?m)^([\w.-]+)==", text))
    wanted = [
        text for text in metadata.requires("ctrain") or () if "extra ==" not in text or 'extra == "build"' in text
    ]
    assert len(wanted) >= 4
    assert {re.split("[><=]", text)[0] for text in wanted} | {"setuptools"} <= {name for name, _ in pinned}
    assert "://" not in text


def test_every_step_is_a_command_that_people_run_too() -> None:
    scripts = [
        step["run"]
        for name in ("images.yml", "image.yml")
        for job in workflow(name)["jobs"].values()
        for step in job.get("steps", [])
        if "run" in step
    ]
    assert len(scripts) > 5
    for script in scripts:
        commands = re.findall(r"(?m)^(?:\w+=\$\()?(\S+)", script)
        assert set(commands) <= {"make", ".venv/bin/ctrain", "printf", "gh"}, script

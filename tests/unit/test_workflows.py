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


@pytest.mark.parametrize(
    "lint",
    [
        ("actionlint",),
        ("zizmor", "--offline", "--persona=auditor", str(WORKFLOWS.parent)),
        ("check-jsonschema", "--builtin-schema=vendor.dependabot", str(WORKFLOWS.parent / "dependabot.yml")),
    ],
)
def test_linters_find_nothing(lint: tuple[str, ...]) -> None:
    argv = [str(Path(sys.executable).with_name(lint[0])), *lint[1:]]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def commands_of(name: str) -> list[str]:
    return [step["run"] for job in workflow(name)["jobs"].values() for step in job["steps"] if "run" in step]


def planned_commands(*targets: str) -> str:
    """What make would run for targets, without running it."""
    argv = ["make", "--dry-run", "--always-make", *targets]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ci_runs_all_that_make_test_runs() -> None:
    """In jobs of their own; the one of the night is make test itself."""
    jobs = workflow("ci.yml")["jobs"]
    assert commands_of("ci.yml")[:3] == ["make check docs", 'make "$TARGET"', 'make "$TARGET"']
    matrix = jobs["unit"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.9", "3.10", "3.11", "3.12", "3.13"]
    assert matrix["include"] == [{"python": "3.11", "target": "unit"}]
    assert jobs["unit"]["env"]["TARGET"] == "${{ matrix.target || 'unit-python' }}"
    assert jobs["system"]["env"]["TARGET"] == "${{ github.event_name == 'schedule' && 'test' || 'system' }}"
    everything, system = (
        re.findall(r"(?m)^tests/parts (.+)$", planned_commands(target))[0].split() for target in ("test", "system")
    )
    assert set(everything) - set(system) == {"test-unit", "test-python39", "test-check"}
    assert set(system) == {"test-cluster", "test-images"}


def test_what_makes_up_make_test_is_every_test_once() -> None:
    words = {name: planned_commands(name) for name in ("test-cluster", "test-images", "test-unit")}
    assert " -m cluster tests/integration " in words["test-cluster"]
    assert " -m 'not cluster' tests/integration " in words["test-images"]
    directories = {path.parent for path in CHECKOUT.glob("tests/*/**/test_*.py")}
    tops = {directory.relative_to(CHECKOUT).parts[1] for directory in directories}
    assert tops == {"unit", "property", "golden", "integration"}
    assert re.search(r" tests/unit tests/property tests/golden ", words["test-unit"])


def test_a_pinned_action_has_one_version_everywhere() -> None:
    texts = "".join(path.read_text() for path in WORKFLOWS.glob("*.yml"))
    pins = set(re.findall(r"uses: (actions/\S+)@(\w{40} # v\S+)", texts))
    assert len(pins) == len({name for name, _ in pins}) == 6


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
    times = {"images.yml": 2, "image.yml": 3, ".gitlab-ci.yml": 2, ".gitlab/image.yml": 3}
    assert ages == {name: ["30"] * count for name, count in times.items()}


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

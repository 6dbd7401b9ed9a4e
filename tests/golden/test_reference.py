"""The pages of docs/reference and the JSON Schemas in docs/schemas: as the code is now, and right about real files."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ctrain_builder.definitions.image_spec import ImageEntry
from ctrain_runtime.base import config, strict_yaml
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.job import JobFile
from ctrain_runtime.site.files import NOT_IN_PROJECTS, PROJECT_FILE, read_project_file
from ctrain_runtime.site.model import Site
from samples import reference_pages
from samples.schemas import meanings_in, meanings_of_job, schemas

TOP = Path(__file__).parents[2]
FILES = reference_pages.files()
SCHEMAS = schemas()
BY_HAND = {"reference/editors.md"}
REAL = {
    "job.json": [*TOP.glob("examples/*/job.yaml"), TOP / "runtime/ctrain_runtime/starting_points/job.yaml"],
    "images.json": [TOP / "definitions/images.yaml"],
    "site.json": [*TOP.glob("runtime/ctrain_runtime/sites/*.yaml"), *TOP.glob("tests/cluster/**/sites/*.yaml")],
    "project.json": [TOP / "tests/samples/formats/ctrain.yaml"],
}
JOB: dict[str, Any] = {"command": ["python", "train.py"], "image": "pytorch"}


def errors(schema: str, data: object) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMAS[schema]).iter_errors(data)]


@pytest.mark.parametrize("name", FILES)
def test_it_is_as_the_code_is_now(name: str) -> None:
    path = reference_pages.DOCS / name
    assert path.is_file() and path.read_text(encoding="utf-8") == FILES[name], "python tests/golden/regenerate.py"


def test_no_other_file_is_beside_them() -> None:
    docs = reference_pages.DOCS
    there = {str(path.relative_to(docs)) for folder in ("reference", "schemas") for path in (docs / folder).iterdir()}
    assert there == {*FILES, *BY_HAND}


@pytest.mark.parametrize(
    ("sample", "heading"),
    [
        ("record-3", "record.json"),
        ("plan-3", "plan.json"),
        ("sweep-1", "SWEEP.sweep.json"),
        ("manifest-4", "The manifest of an image"),
    ],
)
def test_each_field_of_a_written_file_is_on_its_page(sample: str, heading: str) -> None:
    section = FILES["reference/files.md"].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    fields = set(re.findall(r"(?m)^\| `([^`]+)` \|", section))
    data = json.loads((TOP / f"tests/samples/formats/{sample}.json").read_text(encoding="utf-8"))
    assert {key for key in data if key != "schema" or heading != "plan.json"} <= fields
    assert {f"plan.{key}.{inner}" for key, value in data.get("plan", {}).items() for inner in _keys(value)} <= fields


def _keys(value: object) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


@pytest.mark.parametrize(("schema", "path"), [(name, path) for name, paths in REAL.items() for path in paths])
def test_real_files_are_valid(schema: str, path: Path) -> None:
    assert errors(schema, strict_yaml.read(path)) == []


def test_each_schema_is_one_and_has_real_files() -> None:
    for name, schema in SCHEMAS.items():
        Draft202012Validator.check_schema(schema)
        assert REAL[name]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"image": ["pytorch", "pytorch-cpu"]},
        {"retries": "until done"},
        {"retries": "always"},
        {"retries": 3},
        {"comand": ["x"]},
        {"command": "python train.py"},
        {"env": {"LR": 0.1}},
        {"env": {"LR": True}},
        {"env": {"LR": [1]}},
        {"launcher": "mpirun"},
        {"resources": {"nodes": "2"}},
        {"resources": {"gpus_per_node": "auto"}},
        {"resources": {"nodes": 2, "time": "1:00:00"}},
        {"data": {"mount": "/data"}},
        {"training": {"model": {}, "layout": {}, "steps": 3}},
    ],
    ids=str,
)
def test_the_schema_of_jobs_refuses_what_ctrain_refuses(change: dict[str, Any]) -> None:
    data = {**copy.deepcopy(JOB), **change}
    try:
        config.load(JobFile, data, "job.yaml")
        accepted = True
    except ConfigError:
        accepted = False
    assert (errors("job.json", data) == []) is accepted


def test_a_site_file_holds_what_it_changes() -> None:
    assert errors("site.json", {"partition": "gpu", "env": {"NCCL_NET": None}, "runs": None}) == []
    assert errors("site.json", {"partitions": {"gpu": {"nodes": 2, "cpus": 8}}}) == []
    assert errors("site.json", {"partitions": {"gpu": {"nodes": 2}}})
    assert errors("site.json", {"particion": "gpu"})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"site": None},
        {"site": "./sites/x"},
        {"site": 3},
        {"env": {"LR": "0.1", "NCCL_NET": None}},
        {"mounts": "/data"},
        {"particion": "gpu"},
        *({key: None} for key in NOT_IN_PROJECTS),
    ],
    ids=str,
)
def test_the_schema_of_projects_refuses_what_ctrain_refuses(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = {"site": "neuron", **change}
    Path(PROJECT_FILE).write_text(json.dumps(data))
    try:
        accepted = read_project_file(Site) is not None
    except ConfigError:
        accepted = False
    assert (errors("project.json", data) == []) is accepted


def test_every_key_is_explained() -> None:
    """By its own page, from which the schema has what editors show."""
    assert meanings_of_job().keys() == JobFile.__dataclass_fields__.keys()
    assert meanings_in("sites.md", "## Keys").keys() == Site.__dataclass_fields__.keys()
    images = {"from" if name == "parent" else name for name in ImageEntry.__dataclass_fields__}
    assert meanings_in("images.md", "### Keys of images.yaml").keys() == images


@pytest.mark.parametrize("schema", SCHEMAS)
def test_editors_show_what_keys_mean(schema: str) -> None:
    properties = SCHEMAS[schema]["properties"]
    shown = properties["images"]["additionalProperties"]["properties"] if schema == "images.json" else properties
    assert [key for key, value in shown.items() if not value.get("description")] == []

"""Each template is loaded by what reads such files, also with all its settings switched on. The definition and the
layer, which the builder reads: tests/unit/builder/test_starting_points.py."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ctrain_runtime import job
from ctrain_runtime.base import strict_yaml
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.plan.expectation import read_training
from ctrain_runtime.site.select import load_site
from ctrain_runtime.starting_points import templates


def switched_on(text: str) -> str:
    """A template of YAML with what begins with #KEY: as a key."""
    return re.sub(r"(?m)^#(?=\w+:)", "", text)


def load_job(directory: Path, text: str) -> job.Job:
    (directory / "train.py").touch()
    (directory / "job.yaml").write_text(text)
    return job.find(str(directory))


def test_a_job_is_what_its_comments_say(tmp_path: Path) -> None:
    found = load_job(tmp_path, templates.read("job"))
    assert (found.command, found.images) == (("python", "train.py"), ("pytorch", "pytorch-cpu"))
    assert (found.launcher, found.resources) == ("auto", job.Resources())
    assert (found.data, found.env, found.layers, found.training) == (None, {}, (), None)


def test_each_key_of_a_job_is_there_and_can_be_switched_on(tmp_path: Path) -> None:
    found = load_job(tmp_path, switched_on(templates.read("job")))
    assert set(strict_yaml.read(tmp_path / "job.yaml")) == {key.name for key in dataclasses.fields(job.JobFile)}
    assert found.independent and found.data and found.env and found.layers and found.training
    model, layout, steps = read_training(found.training, ("python", "train.py", "batch=32"), 4)
    assert (model.layers, layout.batch, steps) == (12, 32, 1000)


def test_a_site_starts_from_another(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(templates.read("site"))
    site, sources = load_site(f"{tmp_path}/ours.yaml")
    assert (site.name, site.scheduler, site.description) == ("ours", "slurm", "our cluster")
    assert [key for key, source in sources.items() if str(tmp_path) in source] == ["name", "description", "extends"]


def test_each_key_of_a_site_can_be_switched_on(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(switched_on(templates.read("site")))
    site, _ = load_site(f"{tmp_path}/ours.yaml")
    plain = load_site("generic-slurm")[0]
    shown = set(strict_yaml.read(tmp_path / "ours.yaml")) - {"extends", "mpi"}  # what mpi shows is the default
    assert len(shown) > 20
    assert all(getattr(site, key) != getattr(plain, key) for key in shown)


@pytest.mark.parametrize("kind", templates.KINDS)
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "deep/file"
    templates.write_new(path, templates.read(kind), "")
    assert path.read_text() == templates.read(kind)
    with pytest.raises(ConfigError, match=rf"^cannot write {path}: File exists\. Write another file: -o FILE$"):
        templates.write_new(path, "other", "Write another file: -o FILE")
    assert path.read_text() == templates.read(kind)
    assert list(path.parent.iterdir()) == [path]

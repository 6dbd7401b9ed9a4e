from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.plan import build_plan, history
from ctrain_builder.plan.build_plan import FALLBACK_EPOCH, BuildPlan
from ctrain_runtime.errors import UsageError

Git = Callable[..., str]


def _make(spec: ImageSpec) -> BuildPlan:
    return build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, str)


@pytest.fixture
def git(project: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """git(...) in the folder above the project, which is a repository with one commit of 1 January 2020."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "kim")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "kim@site")

    def call(*argv: str, date: int = 1577836800) -> str:
        environment = {**os.environ, "GIT_COMMITTER_DATE": f"{date} +0000"}
        done = subprocess.run(
            ["git", *argv], cwd=project.parent, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    call("init", "--quiet", "-b", "main")
    call("add", "project")
    call("commit", "--quiet", "-m", "one")
    return call


def _epochs(project: Path) -> list[int]:
    spec = image_spec.find_spec(project / "definitions", "small")
    made = build_plan.plan_image(spec, {}, {}, "amd64", lambda _key, _is_base: False, str, history.epochs({}))
    return [layer.epoch for layer in made.layers]


def test_the_epoch_is_the_time_of_the_last_commit_that_touched_the_layer(git: Git, project: Path) -> None:
    assert _epochs(project) == [1577836800, 1577836800]
    (project / "examples/x/train.py").write_text("print(2)\n")
    git("commit", "--quiet", "-am", "two", date=1600000000)
    assert _epochs(project) == [1577836800, 1600000000]


def test_without_a_repository_the_epoch_is_a_constant(project: Path) -> None:
    assert _epochs(project) == [FALLBACK_EPOCH, FALLBACK_EPOCH]


@pytest.mark.usefixtures("git")
def test_what_was_never_committed_has_the_constant(project: Path) -> None:
    (project / "definitions/upper/upper.def").rename(project / "definitions/upper/more.def")
    assert history.epochs({})([project / "definitions/upper/more.def"]) == FALLBACK_EPOCH


@pytest.mark.usefixtures("git")
def test_source_date_epoch_comes_first(project: Path) -> None:
    assert history.epochs({"SOURCE_DATE_EPOCH": "7"})([project / "definitions/images.yaml"]) == 7
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH must be a number of seconds since 1970, not 'yesterday'"):
        history.epochs({"SOURCE_DATE_EPOCH": "yesterday"})


def _plans(project: Path, revision: str, work: Path) -> dict[str, BuildPlan]:
    work.mkdir()
    return history.plans_at(revision, project / "definitions", ["small_1.0-s", "new_1-s"], {}, _make, work)


def test_a_plan_at_a_commit_is_what_it_was_then(git: Git, project: Path, tmp_path: Path) -> None:
    before = _make(image_spec.find_spec(project / "definitions", "small"))
    (project / "examples/x/train.py").write_text("print(2)\n")
    git("commit", "--quiet", "-am", "two")
    (project / "examples/x/train.py").write_text("print(3)\n")
    at_first = _plans(project, "HEAD~1", tmp_path / "first")["small_1.0-s"]
    assert at_first.keys == before.keys
    assert at_first.inputs == before.inputs
    now = _plans(project, "main", tmp_path / "second")["small_1.0-s"]
    assert now.keys[0] == before.keys[0]
    assert now.keys[1] not in (before.keys[1], _make(image_spec.find_spec(project / "definitions", "small")).keys[1])


def test_looking_back_leaves_the_repository_alone(git: Git, project: Path, tmp_path: Path) -> None:
    """Neither its index nor its work tree change, and its hooks don't run."""
    hook = tmp_path / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    hook.chmod(0o755)
    (project / "examples/x/train.py").write_text("print(2)\n")
    git("add", "project")
    (project / "examples/x/train.py").write_text("print(3)\n")
    before = git("status", "--porcelain"), git("diff"), git("diff", "--cached")
    _plans(project, "HEAD", tmp_path / "work")
    assert (git("status", "--porcelain", ":!work", ":!hook-ran"), git("diff"), git("diff", "--cached")) == before
    assert not (tmp_path / "hook-ran").exists()


def test_files_that_archives_leave_out_are_there(git: Git, project: Path, tmp_path: Path) -> None:
    (project / ".gitattributes").write_text("examples export-ignore\n")
    git("add", "project")
    git("commit", "--quiet", "-m", "two")
    assert _plans(project, "HEAD", tmp_path / "work")


@pytest.mark.usefixtures("git")
@pytest.mark.parametrize("revision", ["nowhere", "-x", "HEAD:project", "", "0" * 40])
def test_an_unknown_revision_is_one_line(project: Path, tmp_path: Path, revision: str) -> None:
    with pytest.raises(UsageError, match=f"commit '{revision}' not found in the repository {tmp_path}/.git"):
        _plans(project, revision, tmp_path / "work")


def test_no_repository_is_one_line(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{project} is not in a readable git repository"):
        _plans(project, "HEAD", tmp_path / "work")


def test_definitions_that_can_not_be_read_any_more_are_one_line(git: Git, project: Path, tmp_path: Path) -> None:
    images: Sequence[str] = (project / "definitions/images.yaml").read_text().splitlines()
    (project / "definitions/images.yaml").write_text("\n".join([*images, "    colour: blue", ""]))
    git("commit", "--quiet", "-am", "two")
    with pytest.raises(UsageError, match=r"cannot plan the definitions of HEAD: .*unknown key 'colour'"):
        _plans(project, "HEAD", tmp_path / "work")

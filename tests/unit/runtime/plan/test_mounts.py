from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.errors import DataError, UsageError
from ctrain_runtime.job import Dataset
from ctrain_runtime.plan.model import Mount
from ctrain_runtime.plan.mounts import data_problem, parse_mount
from samples.plans import RUN, a_job, a_plan, a_site


def test_mounts() -> None:
    plan = a_plan(
        job=a_job(directory=Path("/home/kim/job"), data=Dataset("imagenet", "/images")),
        site=a_site(mounts=("/opt/site",), datasets={"imagenet": "/apps/imagenet"}),
        mounts=("/a", "/b:/c", "/d:/e:ro", "/f:/g:rw"),
        resume="/scratch/kim/old/checkpoint",
    )
    assert list(map(str, plan.mounts.paths)) == [
        "/opt/site:/opt/site:rw",
        "/a:/a:rw",
        "/b:/c:rw",
        "/d:/e:ro",
        "/f:/g:rw",
        "/home/kim/job:/home/kim/job:rw",
        "/apps/imagenet:/images:ro",
        f"{RUN}:{RUN}:rw",
        "/scratch/kim/old/checkpoint:/resume:ro",
    ]
    assert plan.environment.variables["CTRAIN_RESUME"] == "/resume"


def test_data() -> None:
    wants = a_job(data=Dataset("imagenet"))
    has = a_site(datasets={"imagenet": "/apps/imagenet"})
    assert a_plan(job=wants, site=has, data="/mine").mounts.paths[-2] == Mount("/mine", "/data", read_only=True)
    assert a_plan(data="/mine").mounts.paths[-2] == Mount("/mine", "/data", read_only=True)
    assert a_plan(job=wants, site=has).mounts.paths[-2] == Mount("/apps/imagenet", "/data", read_only=True)
    assert (a_plan(job=wants, site=has).mounts.data, a_plan().mounts.data) == ("/apps/imagenet", "")
    with pytest.raises(DataError) as caught:
        a_plan(job=wants)
    assert str(caught.value) == (
        "site neuron has no data set 'imagenet', required by job digits."
        " Pass --data DIR, or add it to `datasets` in the site file"
    )


def test_a_data_set_over_the_run_directory_is_refused() -> None:
    """Apptainer before 1.2 would hide the run directory from all ranks; later ones find no place for it."""
    problem = "the data set would be mounted at /scratch, over the run directory /scratch/kim/ctrain/digits-1. Choose"
    with pytest.raises(UsageError, match=problem):
        a_plan(job=a_job(data=Dataset("imagenet", "/scratch")), data="/lustre/imagenet")
    whole = a_plan(job=a_job(data=Dataset("imagenet", "/scratch")), data="/scratch")
    assert list(map(str, whole.mounts.paths))[-2:] == ["/scratch:/scratch:ro", f"{RUN}:{RUN}:rw"]


def test_data_in_one_file() -> None:
    site = a_site(datasets={"imagenet": "/apps/imagenet.sqfs"})
    plan = a_plan(job=a_job(data=Dataset("imagenet", "/images")), site=site)
    assert str(plan.mounts.paths[-2]) == "/apps/imagenet.sqfs:/images:image-src=/,ro"
    assert (plan.mounts.data, a_plan(data="/x.squashfs").mounts.paths[-2].is_image) == ("/apps/imagenet.sqfs", True)
    assert not a_plan(mounts=("/x.sqfs",)).mounts.paths[0].is_image


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("images.sqfs", ""),
        ("directory", ""),
        ("directory.sqfs", "cannot read the data set {}: Is a directory"),
        ("short.sqfs", "cannot mount the data set {}: not a directory, and not such an image"),
        ("images.img", "cannot mount the data set {}: not a directory, and not such an image"),
        ("missing", "cannot read the data set {}: No such file or directory"),
    ],
)
def test_what_a_data_set_can_be(tmp_path: Path, name: str, problem: str) -> None:
    for directory in ("directory", "directory.sqfs"):
        (tmp_path / directory).mkdir()
    for file, text in {"images.sqfs": b"hsqs...", "images.img": b"hsqs...", "short.sqfs": b"hs"}.items():
        (tmp_path / file).write_bytes(text)
    path = tmp_path / name
    error = data_problem(a_plan(data=str(path)).mounts.paths[-2])
    assert (error.message if error else "") == problem.format(path)


def test_a_cache_for_all_jobs_is_mounted_and_named() -> None:
    plan = a_plan(site=a_site(cache="/scratch/models"))
    assert Mount("/scratch/models", "/scratch/models", read_only=False) in plan.mounts.paths
    assert plan.environment.variables["HF_HOME"] == "/scratch/models/huggingface"
    assert plan.environment.variables["TORCH_HOME"] == "/scratch/models/torch"
    mine = a_plan(site=a_site(cache="/scratch/models"), env={"HF_HOME": "/mine"})
    assert mine.environment.variables["HF_HOME"] == "/mine"


@pytest.mark.parametrize("text", ["/a:/b:x", "/a:/b:ro:rw", "", ":/b", ":"])
def test_texts_that_are_no_mounts(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_mount(text)
    assert str(caught.value) == f"--mount {text!r} is not SRC[:DST[:ro]]. As in: --mount /scratch/me:/scratch:ro"


@pytest.mark.parametrize("text", ["/a:ro", "a", "/a,b", "a:/b", "/a:", "/a\nb"])
def test_paths_that_cannot_be_mounted(text: str) -> None:
    with pytest.raises(UsageError, match=r"mount"):
        parse_mount(text)


def test_a_run_directory_that_engines_would_misread_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot mount '/a:b': engines read"):
        a_plan(run_directory=Path("/a:b"))

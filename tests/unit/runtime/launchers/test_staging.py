"""The image on a node's own disk: copied once, checked, shared by runs, and never a reason for a run to fail."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
import time
from pathlib import Path

import pytest

from ctrain_runtime import layout
from ctrain_runtime.launchers.staging import KEEP_DAYS
from ctrain_runtime.plan.model import LaunchPlan
from samples.plans import a_site
from samples.scripts import NO_LAYERS, Scripts, slurm_task

DAY = 24 * 3600


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "it's an image.sif"
    path.write_bytes(b"image" * 50_000)
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "local disk"
    path.mkdir()
    return path


@pytest.fixture
def plan(scripts: Scripts, image: Path, disk: Path) -> LaunchPlan:
    """A run of the image, whose digest is known, on nodes with a disk of their own."""
    manifest = dataclasses.replace(NO_LAYERS.manifest, digest=f"sha256:{digest(image)}")
    staged = dataclasses.replace(NO_LAYERS, path=image, manifest=manifest)
    return scripts.plan("true", image=staged, site=a_site(staging=str(disk)))


def digest(image: Path) -> str:
    return hashlib.sha256(image.read_bytes()).hexdigest()


def copies(disk: Path) -> Path:
    return disk / f"ctrain-images-{os.getuid()}"


def stage(scripts: Scripts, plan: LaunchPlan) -> int:
    return scripts.execute(plan, layout.STAGE_SCRIPT)


def engine_argv(scripts: Scripts) -> list[str]:
    """What the task gave the engine, which here only writes it down."""
    log = scripts.folder / "argv"
    scripts.bin.joinpath("apptainer").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {shlex.quote(str(log))}\n')
    assert scripts.start("task.sh", **slurm_task()).wait() == 0
    return log.read_text().splitlines()


def test_the_image_is_copied_and_the_copy_is_what_runs(
    scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path
) -> None:
    assert stage(scripts, plan) == 0
    copy = copies(disk) / f"{digest(image)}.sif"
    assert copy.read_bytes() == image.read_bytes()
    assert copies(disk).stat().st_mode & 0o777 == 0o700
    assert str(copy) in engine_argv(scripts)
    assert list(copies(disk).iterdir()) == [copy]


def test_a_node_without_a_copy_runs_the_image_itself(scripts: Scripts, plan: LaunchPlan, image: Path) -> None:
    scripts.create(plan)
    assert str(image) in engine_argv(scripts)


def test_a_copy_is_made_once(scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path) -> None:
    scripts.create(plan)
    first = [scripts.start(layout.STAGE_SCRIPT) for _ in range(4)]
    assert [process.wait() for process in first] == [0] * 4
    [copy] = copies(disk).iterdir()
    inode = copy.stat().st_ino
    image.unlink()
    assert scripts.start(layout.STAGE_SCRIPT).wait() == 0
    assert copy.stat().st_ino == inode


def test_another_image_than_the_planned_one_is_not_staged(
    scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path
) -> None:
    image.write_bytes(b"other")
    assert stage(scripts, plan) == 1
    assert not list(copies(disk).iterdir())
    assert f"digest mismatch: {image} has sha256:{digest(image)}. Ranks there read {image}" in scripts.job_log()


@pytest.mark.parametrize("obstacle", ["missing", "link", "file"])
def test_a_directory_that_cannot_serve_is_named_and_not_used(
    scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path, tmp_path: Path, obstacle: str
) -> None:
    if obstacle == "missing":
        disk.rmdir()
    elif obstacle == "link":  # where another user may have put it
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / f"{digest(image)}.sif").write_text("hostile")
        copies(disk).symlink_to(tmp_path / "theirs")
    else:
        copies(disk).touch()
    assert stage(scripts, plan) == 1
    assert f"cannot create {copies(disk)}. Ranks there read {image}" in scripts.job_log()
    assert str(image) in engine_argv(scripts)


def test_a_full_disk_leaves_nothing_behind(scripts: Scripts, plan: LaunchPlan, disk: Path) -> None:
    (scripts.bin / "tee").write_text('#!/bin/bash\nhead -c 100 > "$1"; echo "tee: no space left" >&2; exit 1\n')
    (scripts.bin / "tee").chmod(0o755)
    assert stage(scripts, plan) == 1
    assert not list(copies(disk).iterdir())
    assert "cannot write" in scripts.job_log()


def test_copies_that_were_not_used_for_long_and_parts_of_killed_ones_go(
    scripts: Scripts, plan: LaunchPlan, disk: Path
) -> None:
    copies(disk).mkdir(mode=0o700)
    old = time.time() - (KEEP_DAYS + 2) * DAY
    for name in ("a.sif", "b.sif.part", "kept.sif"):
        (copies(disk) / name).touch()
        if name != "kept.sif":
            os.utime(copies(disk) / name, (old, old))
    assert stage(scripts, plan) == 0
    assert {path.name for path in copies(disk).iterdir()} >= {"kept.sif"}
    assert not (copies(disk) / "a.sif").exists() and not (copies(disk) / "b.sif.part").exists()


def test_a_copy_in_use_does_not_age(scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path) -> None:
    assert stage(scripts, plan) == 0
    copy = copies(disk) / f"{digest(image)}.sif"
    old = time.time() - (KEEP_DAYS - 2) * DAY
    os.utime(copy, (old, old))
    assert scripts.start(layout.STAGE_SCRIPT).wait() == 0
    assert copy.stat().st_mtime > old + DAY

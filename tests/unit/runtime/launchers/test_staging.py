"""The image on a node's own disk: copied once, checked, shared by runs, and never a reason for a run to fail."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shlex
import shutil
import time
from pathlib import Path

import pytest

from ctrain_runtime.base import run_files
from ctrain_runtime.plan.model import DataCopy, LaunchPlan, Mount
from samples.plans import a_launch, a_site, changed
from samples.scripts import NO_LAYERS, Scripts, slurm_task, wait_until

DAY = 24 * 3600
COPIES_DAYS = 7  # staging.bash


def use_python(scripts: Scripts, path: str) -> None:
    """That the library finds no other."""
    library = scripts.run / run_files.LIBRARY
    library.write_text(re.sub(r"(?m)^CT_PYTHONS=.*$", f"CT_PYTHONS=({path})", library.read_text()))


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
    program(scripts, "scontrol", "echo gpu01")
    size = image.stat().st_size
    manifest = dataclasses.replace(NO_LAYERS.manifest, digest=f"sha256:{digest(image)}", size=size)
    staged = dataclasses.replace(NO_LAYERS, path=image, manifest=manifest)
    return scripts.plan("true", image=staged, site=a_site(staging=str(disk)), stage="always")


def program(scripts: Scripts, name: str, text: str) -> None:
    (scripts.bin / name).write_text(f"#!/bin/bash\n{text}\n")
    (scripts.bin / name).chmod(0o755)


def digest(image: Path) -> str:
    return hashlib.sha256(image.read_bytes()).hexdigest()


def copies(disk: Path) -> Path:
    return disk / f"ctrain-images-{os.getuid()}"


def stage(scripts: Scripts, plan: LaunchPlan) -> int:
    return scripts.execute(plan, run_files.STAGE_SCRIPT, **slurm_task())


def stage_again(scripts: Scripts) -> int:
    return scripts.start(run_files.STAGE_SCRIPT, **slurm_task()).wait()


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
    first = [scripts.start(run_files.STAGE_SCRIPT, **slurm_task()) for _ in range(4)]
    assert [process.wait() for process in first] == [0] * 4
    [copy] = copies(disk).iterdir()
    inode = copy.stat().st_ino
    image.unlink()
    assert stage_again(scripts) == 0
    assert copy.stat().st_ino == inode


def test_another_image_than_the_planned_one_is_not_staged(
    scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path
) -> None:
    image.write_bytes(b"other" * 50_000)
    assert stage(scripts, plan) == 1
    assert not list(copies(disk).iterdir())
    reason = f"digest mismatch: the copy has sha256:{digest(image)}. Ranks there read the shared file"
    assert reason in scripts.job_log()


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
    assert re.search(rf"cannot use {re.escape(f'{copies(disk)}')}: .*\. Ranks there read", scripts.job_log())
    assert str(image) in engine_argv(scripts)


def test_a_full_disk_leaves_nothing_behind(scripts: Scripts, plan: LaunchPlan, disk: Path) -> None:
    huge = dataclasses.replace(plan, image=dataclasses.replace(plan.image, size=10**18))
    assert stage(scripts, huge) == 1
    assert not list(copies(disk).iterdir())
    assert "the disk has less than the 1000000000.0 GB that the copy needs" in scripts.job_log()


def test_copies_that_were_not_used_for_long_and_parts_of_killed_ones_go(
    scripts: Scripts, plan: LaunchPlan, disk: Path
) -> None:
    copies(disk).mkdir(mode=0o700)
    old = time.time() - (COPIES_DAYS + 2) * DAY
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
    old = time.time() - (COPIES_DAYS - 2) * DAY
    os.utime(copy, (old, old))
    assert stage_again(scripts) == 0
    assert copy.stat().st_mtime > old + DAY


def test_a_copy_is_locked_while_a_rank_uses_it(scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path) -> None:
    """However old it is, no other run removes it."""
    assert stage(scripts, plan) == 0
    copy = copies(disk) / f"{digest(image)}.sif"
    program(scripts, "apptainer", f'touch {shlex.quote(str(disk))}/up; until [ -e "$0.stop" ]; do sleep 0.05; done')
    rank = scripts.start("task.sh", **slurm_task())
    wait_until((disk / "up").exists)
    (copies(disk) / "unused.sif").touch()
    old = time.time() - (COPIES_DAYS + 2) * DAY
    for path in copies(disk).iterdir():
        os.utime(path, (old, old))
    image.rename(image.with_suffix(".other"))
    other = dataclasses.replace(plan, image=dataclasses.replace(plan.image, digest="sha256:" + "0" * 64))
    (scripts.run / run_files.STAGE_SCRIPT).write_text(a_launch(other).scripts[run_files.STAGE_SCRIPT])
    assert stage_again(scripts) == 1
    assert [path.name for path in copies(disk).iterdir()] == [copy.name]
    (scripts.bin / "apptainer.stop").touch()
    assert rank.wait() == 0


def test_a_copy_that_a_crash_of_the_node_cut_short_is_made_again(
    scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path
) -> None:
    assert stage(scripts, plan) == 0
    copy = copies(disk) / f"{digest(image)}.sif"
    os.truncate(copy, 100)
    assert str(image) in engine_argv(scripts)
    assert stage_again(scripts) == 0
    assert copy.read_bytes() == image.read_bytes()


def test_a_copy_that_exists_is_used_without_making_any(
    scripts: Scripts, plan: LaunchPlan, image: Path, disk: Path
) -> None:
    assert stage(scripts, plan) == 0
    shutil.rmtree(scripts.run)
    auto = changed(plan, copies=False)
    scripts.create(auto)
    assert not (scripts.run / run_files.STAGE_SCRIPT).exists()
    assert str(copies(disk) / f"{digest(image)}.sif") in engine_argv(scripts)


def test_a_node_without_python_is_named(scripts: Scripts, plan: LaunchPlan, disk: Path) -> None:
    scripts.create(plan)
    use_python(scripts, "/missing/python3")
    assert stage_again(scripts) == 1
    assert "no Python 3.6 or later there. Ranks there read the shared file" in scripts.job_log()
    assert not copies(disk).exists()


def test_stage_asks_the_node_before_and_serves_the_node_after(scripts: Scripts, plan: LaunchPlan) -> None:
    program(scripts, "scontrol", "printf '%s\\n' gpu01 gpu02 gpu03")
    scripts.create(changed(plan, nodes=3))
    show = scripts.bin / "python3"
    program(scripts, "python3", '[ "$3" = -c ] || printf "%s\\n" "${@: -2}"')
    use_python(scripts, str(show))
    for task in range(3):
        assert scripts.start(run_files.STAGE_SCRIPT, **slurm_task(task, 3, 1, "gpu[01-03]")).wait() == 0
    asked = [line for line in scripts.job_log().splitlines() if not line.startswith("copying ")]
    port = asked[1]
    assert 61000 <= int(port) < 65536
    assert [line for line in asked if line] == [port, f"gpu01:{port}", port, f"gpu02:{port}", "0"]


@pytest.fixture
def data_plan(plan: LaunchPlan, tmp_path: Path, disk: Path) -> LaunchPlan:
    """The same run with a data set in one file, which is copied, too."""
    file = tmp_path / "it's data.sqfs"
    file.write_bytes(b"hsqs" * 50_000)
    mount = Mount(str(file), "/data", read_only=True, is_image=True)
    copy = DataCopy(mount, f"sha256:{digest(file)}", file.stat().st_size, str(disk))
    return changed(plan, paths=(*plan.mounts.paths, mount), data=mount.source, data_copy=copy)


def data_bind(scripts: Scripts) -> str:
    [bind] = [word for word in engine_argv(scripts) if "image-src" in word]
    return bind


def test_the_data_set_is_copied_and_the_copy_is_mounted(scripts: Scripts, data_plan: LaunchPlan, disk: Path) -> None:
    assert stage(scripts, data_plan) == 0
    assert data_bind(scripts) == f"{data_plan.mounts.data}:/data:image-src=/,ro"  # until there is a copy
    assert scripts.start(run_files.STAGE_DATA_SCRIPT, **slurm_task()).wait() == 0
    copy = copies(disk) / f"{digest(Path(data_plan.mounts.data))}.sqfs"
    assert copy.read_bytes() == Path(data_plan.mounts.data).read_bytes()
    assert data_bind(scripts) == f"{copy}:/data:image-src=/,ro"
    assert str(copies(disk) / f"{digest(Path(data_plan.image.path))}.sif") in engine_argv(scripts)


def test_the_image_stays_where_it_is_if_only_data_is_copied(scripts: Scripts, data_plan: LaunchPlan) -> None:
    plan = changed(data_plan, directory="", copies=False)
    job = (scripts.create(plan) / run_files.JOB_SCRIPT).read_text()
    assert not (scripts.run / run_files.STAGE_SCRIPT).exists()
    assert job.count("\ncopy_to_nodes ") == 1 and f"/{run_files.STAGE_DATA_SCRIPT}" in job
    assert plan.image.path in engine_argv(scripts)


def test_image_and_data_are_copied_one_after_the_other(data_plan: LaunchPlan) -> None:
    steps = re.findall(
        r"^copy_to_nodes .*/(stage\w*\.sh)", a_launch(data_plan).scripts[run_files.JOB_SCRIPT], re.MULTILINE
    )
    assert steps == [run_files.STAGE_SCRIPT, run_files.STAGE_DATA_SCRIPT]

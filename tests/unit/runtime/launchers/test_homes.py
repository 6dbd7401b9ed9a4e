"""One home per node and run (fragments.home): shared by its ranks, removed by the last one, safe from others."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import signal
from pathlib import Path

import pytest

from samples.programs import give_away, write_program
from samples.scripts import Scripts, slurm_task, wait_until


def prefix(node: str = "") -> str:
    return f"ctrain-{os.getuid()}-{node or platform.node().partition('.')[0]}."


def home_of(scripts: Scripts) -> Path:
    return scripts.homes / f"{prefix()}{scripts.plan('x').run_key}"


def test_two_ranks_share_a_home_and_the_last_one_removes_it(scripts: Scripts) -> None:
    wait = "until [ -e done$RANK ]; do sleep 0.02; done"
    plan = scripts.plan("bash", "-c", wait, ranks_per_node=2)
    scripts.create(plan)
    ranks = [scripts.start("task.sh", **slurm_task(rank, size=2)) for rank in (0, 1)]
    wait_until(lambda: len(scripts.node_events()) == 2)
    assert list(scripts.homes.iterdir()) == [home_of(scripts)]
    assert home_of(scripts).stat().st_mode & 0o777 == 0o700
    (scripts.folder / "done0").touch()
    assert ranks[0].wait() == 0
    assert home_of(scripts).is_dir()
    (scripts.folder / "done1").touch()
    assert ranks[1].wait() == 0
    assert not list(scripts.homes.iterdir())


def test_ranks_that_come_and_go_together_never_lack_a_home(scripts: Scripts) -> None:
    """One may remove the home while the next one takes it."""
    scripts.create(scripts.plan("true", ranks_per_node=8))
    for _ in range(4):
        ranks = [scripts.start("task.sh", **slurm_task(rank, size=8)) for rank in range(8)]
        assert [rank.wait() for rank in ranks] == [0] * 8
    assert not list(scripts.homes.iterdir())


def test_what_opens_the_pipes_of_a_script_keeps_no_home_where_it_ends_late(scripts: Scripts) -> None:
    """On a busy machine `:`, whose output is such a pipe, may end after the program."""
    scripts.create(scripts.plan("true"))
    with (scripts.run / "ctrain.bash").open("a") as library:
        library.write(':() { [ "$BASHPID" = "$$" ] || sleep 10; }\n')
    assert scripts.start("task.sh", **slurm_task()).wait() == 0
    assert not list(scripts.homes.iterdir())


def test_what_killed_runs_left_is_removed_by_the_next_run(scripts: Scripts) -> None:
    plan = scripts.plan("sleep", "60")
    scripts.create(plan)
    killed = scripts.start("task.sh", **slurm_task())
    wait_until(lambda: len(scripts.node_events()) == 1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    left = home_of(scripts)
    (left / ".cache").mkdir()
    (left / ".cache/model").write_text("large")
    shutil.rmtree(scripts.run)
    scripts.run = scripts.folder / "next"
    assert scripts.execute(scripts.plan("true"), **slurm_task()) == 0
    assert not list(scripts.homes.iterdir())


def test_homes_in_use_and_links_are_left_alone(scripts: Scripts) -> None:
    in_use, target, link = (scripts.homes / name for name in (f"{prefix()}used", "target", f"{prefix()}link"))
    for folder in (in_use, target):
        folder.mkdir()
        (folder / "file").write_text("kept")
    link.symlink_to(target)
    holder = os.open(in_use, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_SH)
    try:
        assert scripts.execute(scripts.plan("true"), **slurm_task()) == 0
    finally:
        os.close(holder)
    assert (in_use / "file").read_text() == (target / "file").read_text() == "kept"
    assert link.is_symlink()


def test_homes_of_others_are_left_alone(scripts: Scripts) -> None:
    foreign = scripts.homes / f"{prefix()}foreign"
    foreign.mkdir()
    give_away(foreign, 12345)
    assert scripts.execute(scripts.plan("true"), **slurm_task()) == 0
    assert foreign.is_dir()


def test_homes_of_other_nodes_are_left_alone(scripts: Scripts) -> None:
    """Where TMPDIR is shared and locks are not, as on some NFS, a home of another node looks unused here."""
    this = platform.node().partition(".")[0]
    key = scripts.plan("x").run_key
    live = [scripts.homes / f"{prefix(node)}{key}" for node in ("gpu02", f"{this}-b", f"b-{this}")]
    for home in live:
        home.mkdir()
    assert scripts.execute(scripts.plan("true"), **slurm_task()) == 0
    assert sorted(scripts.homes.iterdir()) == sorted(live)


@pytest.mark.parametrize("kind", ["symlink", "dangling", "file", "foreign"])
def test_a_home_that_is_not_ours_is_refused_and_never_deleted(scripts: Scripts, kind: str) -> None:
    home, target = home_of(scripts), scripts.folder / "target"
    if kind == "foreign":
        home.mkdir()
        give_away(home, 12345)
    elif kind == "file":
        home.write_text("kept")
    else:
        home.symlink_to(target)
    if kind == "symlink":
        target.mkdir()
        (target / "file").write_text("kept")
    assert scripts.execute(scripts.plan("true"), **slurm_task()) == 73
    assert scripts.log().startswith(f"ctrain: cannot create a home in {scripts.homes} on ")
    assert scripts.node_events()[0]["what"] == "refused"
    assert os.path.lexists(home)
    assert kind != "symlink" or (target / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["missing", "a:b", "a,b", 'a"b', "a\\b", "a\nb", "file"])
def test_a_tmpdir_that_engines_or_the_node_cannot_use_is_not_used(scripts: Scripts, name: str) -> None:
    folder = scripts.folder / name
    if name == "file":
        folder.touch()
    elif name != "missing":
        folder.mkdir()
    write_program(scripts.bin / "apptainer", "#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    assert scripts.execute(scripts.plan("true"), **{"TMPDIR": str(folder), **slurm_task()}) == 0
    assert f"{os.sep}tmp/{home_of(scripts).name}:/home/ctrain" in scripts.log().splitlines()


@pytest.mark.parametrize("name", ["a b", "it's", "é 대전", "$HOME", "*"])
def test_a_tmpdir_with_a_strange_name_is_used(scripts: Scripts, name: str) -> None:
    folder = scripts.folder / name
    folder.mkdir()
    write_program(scripts.bin / "apptainer", "#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    assert scripts.execute(scripts.plan("true"), **{"TMPDIR": str(folder), **slurm_task()}) == 0
    assert f"{folder}/{home_of(scripts).name}:/home/ctrain" in scripts.log().splitlines()
    assert not list(folder.iterdir())

"""What programs compile for torch is kept for the next run of the image (extensions.bash)."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from ctrain_runtime.plan.model import LaunchPlan
from samples.programs import give_away
from samples.scripts import Scripts, slurm_task, wait_until

# In the place of torch: compiles unless it finds what it has compiled before.
COMPILE = """\
cd "$HOME" && mkdir -p .cache/torch_extensions/adam && cd .cache/torch_extensions/adam
[ ! -e adam.so ] || { echo "found $(cat adam.so)"; exit; }
echo compiling; touch -d @1000000000.5 adam.o; echo one > adam.so
"""


@pytest.fixture
def extensions(scripts: Scripts) -> Path:
    """The user's cache of them."""
    return scripts.folder / "user/.cache/ctrain/extensions"


def run(scripts: Scripts, program: str = COMPILE, name: str = "run", plan: LaunchPlan | None = None) -> str:
    """Run it to its end, in a run directory of its own; what it printed."""
    scripts.run = scripts.folder / name
    planned = dataclasses.replace(plan or scripts.plan("bash", "-c", program), run_directory=str(scripts.run))
    scripts.execute(planned, **slurm_task(), HOME=str(scripts.folder / "user"))
    assert not list(scripts.homes.iterdir())
    return scripts.log().strip()


def of_image(scripts: Scripts, digest: str) -> LaunchPlan:
    plan = scripts.plan("bash", "-c", COMPILE)
    return dataclasses.replace(plan, image=dataclasses.replace(plan.image, digest=digest))


def test_the_next_run_of_an_image_finds_what_one_has_compiled(scripts: Scripts, extensions: Path) -> None:
    assert run(scripts, name="one") == "compiling"
    [kept] = extensions.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700
    assert (kept / "adam/adam.o").stat().st_mtime_ns == 1_000_000_000_500_000_000, "ninja compares times"
    os.utime(kept, (time.time() - 20 * 86400,) * 2)
    assert run(scripts, name="two") == "found one"
    assert kept.stat().st_mtime > time.time() - 600, "it is in use"
    assert [path.name for path in kept.iterdir()] == ["adam"]


def test_other_images_have_their_own(scripts: Scripts, extensions: Path) -> None:
    one, other, nobody = (of_image(scripts, digest) for digest in (f"sha256:{'1' * 64}", f"sha256:{'2' * 64}", ""))
    said = [run(scripts, name=str(number), plan=plan) for number, plan in enumerate((one, other, one, nobody, nobody))]
    assert said == ["compiling", "compiling", "found one", "compiling", "compiling"]
    assert len([*extensions.iterdir()]) == 2


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("exit 3", "a failed run may have been killed as it compiled"),
        ("touch lock", "of a rank that was killed"),
        ("rm adam.so", "the compiler failed"),
    ],
)
def test_what_may_be_half_made_is_not_kept(scripts: Scripts, extensions: Path, end: str, why: str) -> None:
    run(scripts, COMPILE + end)
    assert not [*extensions.glob("*/*")], why


def test_what_was_compiled_anew_replaces_the_old(scripts: Scripts, extensions: Path) -> None:
    run(scripts, name="one")
    run(scripts, "echo two > $HOME/.cache/torch_extensions/adam/adam.so", name="two")
    assert run(scripts, name="three") == "found two"
    assert [path.name for path in extensions.glob("*/*")] == ["adam"]


def test_what_nobody_uses_any_more_is_removed(scripts: Scripts, extensions: Path) -> None:
    run(scripts, name="one")
    [kept] = extensions.iterdir()
    left = kept / ".adam.node01.812"  # by one that was killed
    for path, days in ((extensions / "old", 32), (extensions / "recent", 28), (left, 2)):
        path.mkdir()
        os.utime(path, (time.time() - days * 86400,) * 2)
    run(scripts, name="two")
    assert {path.name for path in extensions.iterdir()} == {kept.name, "recent"}
    assert not left.exists()


def test_what_is_not_ours_is_not_taken(scripts: Scripts, extensions: Path, tmp_path: Path) -> None:
    run(scripts, name="one")
    [kept] = extensions.iterdir()
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert run(scripts, name="two") == "compiling"
    kept.unlink()
    (tmp_path / "elsewhere").rename(kept)
    give_away(kept, 12345)
    assert run(scripts, name="three") == "compiling"


def test_a_user_without_a_home_compiles_each_time(scripts: Scripts) -> None:
    for _ in range(2):
        scripts.run = scripts.folder / f"run{_}"
        assert scripts.execute(scripts.plan("bash", "-c", COMPILE), **slurm_task()) == 0
        assert scripts.log().strip() == "compiling"


def test_the_lock_of_a_killed_attempt_stops_nobody(scripts: Scripts) -> None:
    """torch waits for it without end. A requeued run has the home of its first attempt."""
    compiles = 'touch again; mkdir -p "$(dirname "$lock")"; touch "$lock"; exec sleep 60'
    program = f'lock=$HOME/.cache/torch_extensions/adam/lock; if [ -e again ]; then [ -e "$lock" ]; else {compiles}; fi'
    scripts.create(scripts.plan("bash", "-c", program))
    killed = scripts.start("task.sh", **slurm_task())
    wait_until(lambda: bool([*scripts.homes.glob("*/.cache/torch_extensions/adam/lock")]))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    wait_until(lambda: not has_processes(killed.pid))  # as long as one of them dies, the home is in use
    assert scripts.start("task.sh", **slurm_task()).wait() == 1, "the lock is gone"


def has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_lock_of_a_rank_that_compiles_stays(scripts: Scripts) -> None:
    wait = "until [ -e done$RANK ]; do sleep 0.02; done"
    lock = 'lock=$HOME/.cache/torch_extensions/adam/lock; mkdir -p "$(dirname "$lock")"; [ $RANK = 1 ] || touch "$lock"'
    scripts.create(scripts.plan("bash", "-c", f"{lock}; {wait}", ranks_per_node=2))
    first = scripts.start("task.sh", **slurm_task(0, size=2))
    wait_until(lambda: bool([*scripts.homes.glob("*/.cache/torch_extensions/adam/lock")]))
    second = scripts.start("task.sh", **slurm_task(1, size=2))
    wait_until(lambda: len(scripts.node_events()) == 2)
    assert [*scripts.homes.glob("*/.cache/torch_extensions/adam/lock")]
    for rank in (0, 1):
        (scripts.folder / f"done{rank}").touch()
    assert (first.wait(), second.wait()) == (0, 0)

"""tests/cluster/demo, which `make demo` runs, with stand-ins for what it starts."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ctrain_builder.definitions import image_spec
from ctrain_runtime.cli.main import RUNTIME_VERBS, parser_of

PROGRAM = Path(__file__).resolve().parents[1] / "cluster" / "demo"
MAKEFILE = """\
build/demo-env/bin/ctrain:
\t@mkdir -p $(@D) && cp tests/cluster/install $(@D)/pip && echo "$@ $(CURDIR)" >> log
"""
# Each notes its arguments; what `broken` names fails, and what `slow` names takes long.
STAND_IN = """\
#!/bin/bash
cd "${0%/*}"
until [[ -e Makefile ]]; do cd ..; done
echo "${0##*/} $*" >> log
case "$1" in
    build) until [[ -e data || -e slow ]]; do sleep 0.05; done ;; # which comes only if it is made meanwhile
    data) touch data ;;
esac
if grep --quiet --line-regexp "$1" broken 2> /dev/null; then
    echo "$1 is broken" >&2
    exit 77
fi
if grep --quiet --line-regexp "$1" slow 2> /dev/null; then
    exec sleep 4711
fi
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tests/cluster"
    folder.mkdir(parents=True)
    for program in (PROGRAM, PROGRAM.with_name("login")):
        shutil.copy(program, folder)
    for name in ("install", "cluster", "provision"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


def run(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tree / "tests/cluster/demo"], capture_output=True, text=True, timeout=60)


def started(tree: Path) -> list[str]:
    return (tree / "log").read_text().splitlines()


def phases(tree: Path) -> list[str]:
    record = (tree / "build/demo/phases.jsonl").read_text().splitlines()
    return [line["phase"] for line in map(json.loads, record) if line["ms"] >= 0 and line["start_ms"] >= 0]


def test_all_is_made_and_the_image_meanwhile(tree: Path) -> None:
    done = run(tree)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(started(tree)[:2]) == {"install --for-demo", f"build/demo-env/bin/ctrain {tree}"}
    assert sorted(started(tree)[2:7]) == [
        "cluster up",
        "pip install --quiet --quiet --no-compile setuptools>=77 scikit-learn pillow",
        "provision build pytorch-cpu-slim",
        "provision data",
        "provision users",
    ]
    assert started(tree)[7] == "provision publish pytorch-cpu-slim"
    images, training = started(tree)[8:]
    assert images.endswith("-- ctrain images")
    assert " -- ctrain run resnet50 --nodes 2 --ranks-per-node 1 --env OMP_NUM_THREADS=1 " in training
    assert " --image pytorch-cpu-slim --data " in training
    assert sorted(phases(tree)) == sorted(
        ["packages", "environment", "cluster", "users", "data", "image", "publish", "training"]
    )
    assert re.search(r"\n\nIn \d+ s: a Slurm cluster came up on this machine; image pytorch-cpu-slim was ", done.stdout)


def test_it_ends_with_three_commands_that_can_be_pasted(tree: Path) -> None:
    commands = [line for line in run(tree).stdout.splitlines() if line.startswith("  tests/cluster/login ")]
    assert len(commands) == 3
    for command in commands:
        subprocess.run(["bash", "-c", command], cwd=tree, check=True, timeout=60)
        words = shlex.split(command, comments=True)[1:]
        assert started(tree)[-1].endswith(f"/usr/bin:/bin -- {shlex.join(words)}")
        own = words[2 : words.index("--") if "--" in words else None]
        parser_of(next(verb for verb in RUNTIME_VERBS if verb.name == words[1])).parse_args(own)


@pytest.mark.parametrize(("part", "first"), [("up", "cluster up"), ("users", "provision users")])
def test_what_fails_beside_the_build_is_told_and_ends_the_demo(tree: Path, part: str, first: str) -> None:
    (tree / "broken").write_text(f"{part}\n")
    (tree / "data").touch()
    done = run(tree)
    assert done.returncode == 77
    assert f"{part} is broken" in done.stdout
    assert first in started(tree)
    assert not any("publish" in line for line in started(tree))


def test_a_build_that_fails_ends_what_runs_beside_it(tree: Path) -> None:
    (tree / "broken").write_text("build\n")
    (tree / "slow").write_text("up\n")
    done = run(tree)
    assert (done.returncode, done.stderr) == (77, "build is broken\n")
    deadline = time.monotonic() + 10
    while sleeping(tree) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not sleeping(tree)


def sleeping(tree: Path) -> list[Path]:
    """The processes that still run in the tree."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == tree and b"4711" in (process / "cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def test_its_image_is_in_the_catalog() -> None:
    [name] = [
        line.split("=")[1].split()[0] for line in PROGRAM.read_text().splitlines() if line.startswith("readonly IMAGE=")
    ]
    spec = image_spec.find_spec(image_spec.packaged(), name)
    assert {"horovod", "deepspeed", "train"} <= {part.name for part in spec.chain}

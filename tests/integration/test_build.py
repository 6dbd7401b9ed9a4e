"""`ctrain build`, `publish` and `images` on the real definitions, with the layers that the cluster's image has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.build_host import settings
from ctrain_builder.cache.cache_root import CACHE_MARKER, default_root
from samples.cluster import Cluster, Done
from samples.long_mode import LONG

CHECKOUT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("cluster")
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")


def ctrain(*argv: str) -> Done:
    return subprocess.run([CTRAIN, *argv], capture_output=True, text=True, timeout=900)


def layers(name: str = "pytorch-cpu") -> list[dict[str, Any]]:
    done = ctrain("build", name, "--plan", "--json")
    assert done.returncode == 0, done.stderr
    [image] = json.loads(done.stdout)["images"]
    return list(image["layers"])


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """A copy of the definitions and examples with one line of training code changed; returns its definitions."""
    for name in ("definitions", "examples"):
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "examples" / "resnet50" / "train.py").open("a") as program:
        program.write("# changed by tests/integration/test_build.py\n")
    return tmp_path / "definitions"


def test_what_exists_is_not_built_again() -> None:
    exist = {layer["definition"]: layer["exists"] for layer in layers()}
    assert all(exist.values())
    assert [*exist] == ["pytorch-cpu", "horovod", "deepspeed", "deepspeed-ops", "libraries", "train"]
    done = ctrain("build", "pytorch-cpu")
    assert done.returncode == 0
    assert "is up to date, nothing to do" in done.stdout


def test_the_image_is_tested_and_described(cluster: Cluster) -> None:
    done = cluster.run("ctrain", "images", "--json")
    images = [entry for entry in json.loads(done.stdout)["images"] if entry["name"] == "pytorch-cpu"]
    [image] = [entry for entry in images if "prod" in entry["channels"]]  # beside that of a demo
    names = [test["name"] for test in image["tests"]]
    assert all(test["passed"] for test in image["tests"])
    assert {"imports", "torch unchanged", "horovodrun -cb", "DeepSpeed step"} <= set(names), names
    assert [name for name in names if "all-reduce" in name and "MPI" in name], names
    assert [name for name in names if "all-reduce" in name and "Gloo" in name], names
    assert image["software"]["torch"].startswith("2.13.0") and image["software"]["horovod"] == "0.28.1"
    table = cluster.run("ctrain", "images").stdout
    assert "pytorch-cpu" in table and "2.13.0-hd-r" in table and "prod" in table


def test_nothing_of_the_building_machine_is_in_the_image(cluster: Cluster) -> None:
    """Neither its Debian mirror nor its package folders: not in what the builds wrote down, nor in what they left."""
    site = settings.detect(os.environ)
    traces = [site.mirror, *map(str, site.package_dirs)]
    words = [word for trace in traces for word in ("-e", trace)]
    places = ["/etc", "/mnt", "/root", "/.singularity.d", "/usr/local/etc", "/var/lib/apt", "/var/log"]
    image = str(cluster.store / "channels" / "pytorch-cpu_prod.sif")
    engine = ["apptainer", "--quiet", "exec", "--userns", "--no-mount", "home,cwd,tmp", image]
    assert site.mirror, "this Debian has a mirror, so there is something to look for"
    found = subprocess.run([*engine, "grep", "-rlFs", *words, *places], capture_output=True, text=True)
    assert found.stdout == "", found.stderr


@pytest.mark.quick
def test_an_ordinary_user_builds_only_the_changed_layer(cluster: Cluster, changed: Path) -> None:
    """Of the slim image, whose other layers are those of the whole one."""
    cache = cluster.home / "cache"
    (cache / "layers").mkdir(parents=True, exist_ok=True)
    shutil.copy(default_root() / CACHE_MARKER, cache)
    for planned in layers("pytorch-cpu-slim"):
        for layer in (default_root() / "layers").glob(f"{planned['key']}.*"):
            if not (cache / "layers" / layer.name).exists():
                shutil.copyfile(layer, cache / "layers" / layer.name)
    copy = cluster.home / "changed"
    shutil.copytree(changed.parent, copy, dirs_exist_ok=True)
    copy.chmod(0o755)  # pytest's folders are root's alone
    subprocess.run(["chown", "researcher:", cluster.home], check=True)
    subprocess.run(["chown", "-R", "researcher:", cache], check=True)
    cache.chmod(0o700)
    tests = "changed" if LONG else "later"  # by day, those of the whole image by root
    argv = ["build", "pytorch-cpu-slim", "--definitions", f"{copy}/definitions", "--cache", str(cache)]
    done = cluster.run("ctrain", *argv, "--tests", tests, timeout=600)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert [line[1] for line in lines if line[0] == "layer" and "built" in line] == ["train"]
        [sif] = (cache / "images").glob("*.sif")
        code = cluster.run("apptainer", "exec", str(sif), "tail", "-n1", "/opt/ctrain/examples/resnet50/train.py")
        assert code.stdout == "# changed by tests/integration/test_build.py\n", code.stderr
    finally:
        subprocess.run(["rm", "-rf", cache, copy], check=True)


def test_a_failed_post_shows_its_last_lines_and_the_log(changed: Path) -> None:
    with (changed / "train" / "train.def").open("a") as definition:
        definition.write("\n%post\n    echo this is the reason\n    exit 3\n")
    done = ctrain("build", "pytorch-cpu", "--definitions", str(changed))
    assert done.returncode == 77
    *shown, last = done.stderr.splitlines()
    assert any("this is the reason" in line for line in shown)
    assert last.startswith("ctrain: definition train of image pytorch-cpu 2.13.0 failed in %post (exit code 3)")
    assert Path(last.rsplit(" ", 1)[-1]).is_file()


def test_publishing_again_changes_nothing_and_a_full_disk_loses_nothing(cluster: Cluster) -> None:
    before = sorted(cluster.store.iterdir())
    done = ctrain("publish", "pytorch-cpu", "--store", str(cluster.store), "--channel", "prod")
    assert done.returncode == 0, done.stderr
    assert sorted(cluster.store.iterdir()) == before
    small = cluster.state / "small-store"
    small.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(small)], check=True)
    try:
        assert ctrain("store", "init", str(small)).returncode == 0
        full = ctrain("publish", "pytorch-cpu", "--store", str(small))
        left = list(small.rglob("*.sif"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
        small.rmdir()
    assert (full.returncode, left) == (75, []), full.stderr
    assert len(full.stderr.splitlines()) == 1

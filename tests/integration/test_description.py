"""What the published image tells of itself, against what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cache.cache_root import CACHE_MARKER, default_root
from ctrain_runtime.store import sbom, sif
from ctrain_runtime.store.manifest import read_manifest
from samples.cluster import Cluster
from samples.long_mode import LONG

CHECKOUT = Path(__file__).parents[2]
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")


@pytest.fixture(scope="module")
def image(cluster: Cluster) -> Path:
    return (cluster.store / "channels" / "pytorch-cpu_prod.sif").resolve()


@pytest.fixture(scope="module")
def manifest(image: Path) -> dict[str, Any]:
    return dict(json.loads(image.with_suffix(".json").read_text()))


def inside(cluster: Cluster, image: Path, *argv: str) -> str:
    done = cluster.run("apptainer", "--quiet", "exec", "--cleanenv", "--no-home", str(image), *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_list_is_what_dpkg_and_pip_say(cluster: Cluster, image: Path) -> None:
    listed = sbom.packages(image)
    dpkg = inside(cluster, image, "dpkg-query", "-W", "-f", "${Status}|${Package}|${Version}\n")
    lines = (line.split("|") for line in dpkg.splitlines())
    assert {name: number for (kind, name), number in listed.items() if kind == "deb"} == {
        name: number for status, name, number in lines if status.endswith(" installed")
    }
    pip = json.loads(inside(cluster, image, "python3", "-m", "pip", "list", "--format", "json"))
    assert {name: number for (kind, name), number in listed.items() if kind == "pypi"} == {
        re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"] for package in pip
    }


def test_the_engine_shows_the_package_list_and_still_runs_the_image(cluster: Cluster, image: Path) -> None:
    listed = cluster.run("apptainer", "sif", "list", str(image)).stdout
    [(number, group)] = re.findall(r"(?m)^(\d+)\s+\|(\d+)\s.*\|SBOM \(cyclonedx-json\)", listed)
    assert group == "1"  # what is signed with the partitions
    dumped = subprocess.run(["apptainer", "sif", "dump", number, image], capture_output=True, check=True).stdout
    assert dumped == sif.object_bytes(image, sif.SBOM)
    assert json.loads(dumped)["bomFormat"] == "CycloneDX"
    assert inside(cluster, image, "ls", "/opt/ctrain/examples").split()


def test_the_layers_of_the_manifest_are_the_partitions(image: Path, manifest: dict[str, Any]) -> None:
    content = image.read_bytes()
    assert [(layer["size"], layer["digest"]) for layer in manifest["layers"]] == [
        (part.size, f"sha256:{hashlib.sha256(content[part.offset : part.offset + part.size]).hexdigest()}")
        for part in sif.partitions(image)
    ]
    assert manifest["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_inspect_tells_the_labels_of_image_and_layers(cluster: Cluster, image: Path, manifest: dict[str, Any]) -> None:
    said = json.loads(cluster.run("apptainer", "inspect", "--json", "--labels", str(image)).stdout)
    labels = said["data"]["attributes"]["labels"]
    built = manifest["labels"]["org.ctrain.base.built"]  # not in the image: it would differ from build to build
    assert {**labels, "org.ctrain.base.built": built} == manifest["labels"]
    assert labels["org.ctrain.layers"] == "pytorch-cpu horovod deepspeed deepspeed-ops libraries train"
    assert labels["org.ctrain.key"] == manifest["layers"][-1]["key"]
    assert labels["org.opencontainers.image.title"] == "pytorch-cpu"
    stated = "BSD-3-Clause AND Apache-2.0 AND "  # of the layers; behind it stand those of the packages
    assert labels["org.opencontainers.image.licenses"].startswith(stated)
    assert " MIT" in labels["org.opencontainers.image.licenses"] and labels["org.ctrain.licenses.packages"]
    assert labels["org.ctrain.horovod.version"] == "0.28.1"  # of a layer


def test_a_user_looks_at_it(cluster: Cluster, image: Path) -> None:
    shown = cluster.run("ctrain", "images", "show", "pytorch-cpu")
    assert shown.returncode == 0, shown.stderr
    for part in (
        "pytorch-cpu 2.13.0-hd-r",
        "fits       amd64, no GPU needed",
        "torch unchanged",
        " deb, ",
        " pypi; not named ",
    ):
        assert part in shown.stdout
    compared = cluster.run("ctrain", "images", "diff", "pytorch-cpu", str(image))
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count("  same\n") == 6
    assert compared.stdout.endswith("packages: 0 added, 0 removed, 0 changed\n")


@pytest.fixture
def own_cache() -> Iterator[Path]:
    """A cache with the layers of the machine's, whose image must stay as it is."""
    cache = default_root().with_name(f"ctrain-test-{os.getpid()}")
    cache.mkdir(mode=0o700)
    shutil.copy(default_root() / CACHE_MARKER, cache)
    (cache / "layers").mkdir()
    for layer in (default_root() / "layers").iterdir():
        os.link(layer, cache / "layers" / layer.name)
    yield cache
    shutil.rmtree(cache)


@pytest.mark.usefixtures("pytorch_cpu")
@pytest.mark.skipif(
    not LONG,
    reason="by day, test_parents.py has a layer that breaks another, test_inside.py files of torch: CTRAIN_LONG=1",
)
def test_a_layer_that_breaks_torch_is_named(tmp_path: Path, own_cache: Path) -> None:
    for name in ("definitions", "examples"):
        shutil.copytree(CHECKOUT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    definition = tmp_path / "definitions" / "train" / "train.def"
    torch = "/usr/local/lib/python3.11/dist-packages/torch"
    definition.write_text(definition.read_text().replace("%test\n", f"    echo >> {torch}/hub.py\n\n%test\n", 1))
    definitions = str(tmp_path / "definitions")  # of the slim image, which has the fewest tests
    argv = [CTRAIN, "build", "pytorch-cpu-slim", "--definitions", definitions, "--cache", str(own_cache)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
    assert done.returncode == 78, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ctrain: test 'torch unchanged' of image pytorch-cpu-slim 2.13.0 failed: files of torch: ")
    assert "; first failing layer: train. Log: " in last
    [failed] = (own_cache / "images").glob("*.json")
    assert not read_manifest(failed).tested  # publish refuses it

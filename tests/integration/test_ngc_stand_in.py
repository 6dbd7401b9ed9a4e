"""The traps of NVIDIA's images: definitions on a stand-in for one, which a real registry on loopback serves.

On a stand-in without torch and compilers the part of horovod.def is run that meets the traps. With
CTRAIN_STAND_IN=whole it is the real chain on a whole one, which takes ten minutes more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder import build_cache
from ctrain_builder.cache_root import default_root
from samples import ngc_stand_in, registry
from samples.cluster import Cluster, Done

CHECKOUT = Path(__file__).parents[2]
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")
WHOLE = os.environ.get("CTRAIN_STAND_IN") == "whole"
CATALOG = """\
images:
  stand-in:
    chain: [pytorch-ngc, horovod{more}]
    stack: hd
    tag: "24.12"
    tag_argument: TAG
    horovod: [{features}]
    tags:
      "24.12": {{python: "3.11", mpi: /opt/hpcx/ompi, constraints: /etc/pip/constraint.txt}}
"""


@dataclass(frozen=True)
class Image:
    path: Path
    manifest: dict[str, Any]
    reference: str
    digest: str

    def run(self, *argv: str) -> Done:
        engine = ["apptainer", "--quiet", "exec", "--userns", "--cleanenv", "--no-mount", "home,cwd", "--pwd", "/"]
        return subprocess.run([*engine, str(self.path), *argv], capture_output=True, text=True, timeout=120)


def ctrain(*argv: str, timeout: float = 300) -> Done:
    return subprocess.run([CTRAIN, *argv], capture_output=True, text=True, timeout=timeout)


def without_test(text: str) -> str:
    return re.sub(r"(?ms)^%test\n.*?(?=^%)", "", text)


def project(folder: Path) -> Path:
    """The definitions for the stand-in: the real ones, but for what needs CUDA and, unless WHOLE, torch."""
    for name in ("definitions", "examples"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    base = folder / "definitions/pytorch-ngc/pytorch-ngc.def"
    base.write_text(without_test(base.read_text()))
    more, features = ", deepspeed, libraries, train", "PyTorch, MPI, Gloo"
    if not WHOLE:
        more, features = "", ""
        horovod = folder / "definitions/horovod/horovod.def"
        head, _, tail = horovod.read_text().partition("    # The last release asks for")
        assert "install_missing" in head and "%test" in tail
        # A shell as a build may start one
        horovod.write_text(f"{head}    bash -c true\n\n%labels\n{without_test(tail).partition('%labels')[2]}")
    (folder / "definitions/images.yaml").write_text(CATALOG.format(more=more, features=features))
    return folder / "definitions"


@pytest.fixture(scope="module")
def image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:  # noqa: ARG001  # brings the base
    plan = json.loads(ctrain("build", "pytorch-cpu", "--plan", "--json").stdout)
    base = build_cache.Cache(default_root()).layer(plan["images"][0]["layers"][0]["key"], True)
    work = tmp_path_factory.mktemp("ngc")
    with registry.serve(work / "registry") as served:
        digest = served.push(ngc_stand_in.layout(base, work / "oci", whole=WHOLE), ngc_stand_in.NAME)
        shutil.rmtree(work / "oci")
        argv = ["stand-in", "--definitions", str(project(work)), "--cache", str(work / "cache"), "--json"]
        done = ctrain("build", *argv, "--build-arg", f"REGISTRY={served.host}", timeout=1800)
    assert done.returncode == 0, done.stderr
    [sif] = (work / "cache" / "images").glob("*.sif")
    manifest = json.loads(sif.with_suffix(".json").read_text())
    yield Image(sif, manifest, f"{served.host}/{ngc_stand_in.NAME}", digest)
    shutil.rmtree(work)


def test_the_base_is_known_by_its_digest(image: Image) -> None:
    assert image.manifest["base"] == {"reference": image.reference, "digest": image.digest}
    assert image.manifest["software"]["torch"].startswith("2.13.0" if WHOLE else ngc_stand_in.TORCH)


def test_what_the_image_has_stays_and_its_constraint_file_decides(image: Image) -> None:
    names = ["setuptools", "cffi", "psutil", "pyyaml"]
    program = f"from importlib.metadata import version\nprint(*map(version, {names}))"
    # setuptools is there, whatever the file says; cffi and psutil are named there; pyyaml is the definition's.
    assert image.run("python3", "-c", program).stdout == "80.9.0 1.16.0 6.1.1 6.0.3\n"


def test_no_shell_of_the_build_met_the_driver_check(image: Image) -> None:
    """It would have taken a link out of the image, for good."""
    there = f"/{ngc_stand_in.COMPAT}/lib /{ngc_stand_in.CHECKS}"
    found = image.run("/bin/sh", "-c", f"ls -d {there}")
    assert found.stdout == f"/{ngc_stand_in.COMPAT}/lib\n", found.stderr


def test_only_bash_gets_the_libraries_for_older_drivers(image: Image) -> None:
    ask = "echo $LD_LIBRARY_PATH"
    plain, bash = image.run("/bin/sh", "-c", ask).stdout, image.run("bash", "-c", ask)
    assert "driver check" not in plain and "lib.real" not in plain
    assert "driver check" in bash.stdout and f"/{ngc_stand_in.COMPAT}/lib.real:" in bash.stdout
    assert "Read-only file system" in bash.stderr  # and nothing else comes of it


def test_mpi_is_found_at_its_place(image: Image) -> None:
    root = ("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1")
    done = image.run("env", *root, "mpirun", "-np", "2", "printenv", "OMPI_COMM_WORLD_SIZE")
    assert done.stdout == "2\n2\n", done.stderr
    assert "-I/opt/hpcx/ompi/" in image.run("mpicc", "-showme").stdout
    assert "mpicc-wrapper-data.txt" in image.run("env", "-u", "OPAL_PREFIX", "mpicc", "-showme").stderr


def test_a_run_meets_neither_entrypoint_nor_empty_variables(image: Image, tmp_path: Path) -> None:
    options = ["--site", "local", "--image", str(image.path), "--runs", str(tmp_path), "--ranks-per-node", "2"]
    program = ["/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE, NCCL_DEBUG is $NCCL_DEBUG"]
    done = ctrain("run", *options, "--name", "ngc", "--env", "NCCL_DEBUG=INFO", "--", *program)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = sorted((tmp_path / "ngc" / "logs").glob("rank*.log"))
    assert [log.read_text() for log in logs] == [f"rank {rank} of 2, NCCL_DEBUG is INFO\n" for rank in (0, 1)]
    assert "entrypoint" not in (tmp_path / "ngc" / "logs" / "job.log").read_text()

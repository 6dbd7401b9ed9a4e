"""The traps of NVIDIA's images: definitions on stand-ins for three of them, which a real registry on loopback serves.

On stand-ins without torch and compilers the part of horovod.def is run that meets the traps, and libraries.def without
its test; those of 22.03 and 24.12 with CTRAIN_LONG=1 only. With CTRAIN_STAND_IN=whole it is the real chain on whole
ones, which takes ten minutes more for each.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cache import build_cache
from ctrain_builder.cache.cache_root import default_root
from samples import ngc_stand_in, registry
from samples.cluster import Done
from samples.long_mode import LONG

CHECKOUT = Path(__file__).parents[2]
CTRAIN = str(CHECKOUT / ".venv" / "bin" / "ctrain")
WHOLE = os.environ.get("CTRAIN_STAND_IN") == "whole"
TAGS = tuple(ngc_stand_in.RELEASES) if WHOLE or LONG else ("26.08",)
_NEW = {"safetensors": "0.7.0", "accelerate": "1.15.0", "pytorch-lightning": "2.6.6"}
PACKAGES = {
    "22.03": {
        **_NEW,
        "transformers": "4.46.3",
        "regex": "2024.11.6",
        "accelerate": "1.0.1",
        "pytorch-lightning": "2.0.9.post0",
    },
    "24.12": {**_NEW, "transformers": "4.52.4", "regex": "2024.11.6"},
    "26.08": {**_NEW, "transformers": "4.57.6", "regex": "2024.11.6", "megatron-core": "0.16.1"},
}
CATALOG = """\
images:
  stand-in:
    chain: [pytorch-ngc, horovod, {more}]
    stack: hd
    tag: "24.12"
    tag_argument: TAG
    horovod: [{features}]
    tags:
      "22.03": {{arguments: {{{older}}}, python: "3.11", mpi: /opt/hpcx/ompi}}
      "24.12": {{python: "3.11", mpi: /opt/hpcx/ompi}}
      "26.08": {{python: "3.11", mpi: /opt/hpcx/ompi, constraints: /etc/pip/constraint.txt}}
"""


@dataclass(frozen=True)
class Image:
    path: Path
    manifest: dict[str, Any]
    reference: str
    digest: str
    release: ngc_stand_in.Release
    logs: str

    def run(self, *argv: str) -> Done:
        engine = ["apptainer", "--quiet", "exec", "--userns", "--cleanenv", "--no-mount", "home,cwd", "--pwd", "/"]
        return subprocess.run([*engine, str(self.path), *argv], capture_output=True, text=True, timeout=120)

    def versions(self, *names: str) -> str:
        program = "import sys\nfrom importlib.metadata import version\nprint(*map(version, sys.argv[1:]))"
        return self.run("python3", "-c", program, *names).stdout.strip()


def ctrain(*argv: str, timeout: float = 300) -> Done:
    return subprocess.run([CTRAIN, *argv], capture_output=True, text=True, timeout=timeout)


def without_test(text: str) -> str:
    return re.sub(r"(?ms)^%test\n.*?(?=^%)", "", text)


def project(folder: Path) -> None:
    """The definitions for the stand-in: the real ones, but for what needs CUDA and, unless WHOLE, torch."""
    for name in ("definitions", "examples"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    base = folder / "definitions/pytorch-ngc/pytorch-ngc.def"
    base.write_text(without_test(base.read_text()))
    more, features = "deepspeed, deepspeed-ops, libraries, train", "PyTorch, MPI, Gloo"
    older = "DEEPSPEED: 0.14.5, CPU_ARCH: haswell"
    if not WHOLE:
        more, features, older = "libraries", "", ""
        horovod = folder / "definitions/horovod/horovod.def"
        head, compiles, tail = horovod.read_text().partition("    compile_once ")
        mpi4py = "    start_mpi4py {{ MPI4PY }}\n"
        assert compiles and mpi4py in head and "install_missing" in head and "%test" in tail
        # A shell as a build may start one
        head = head.replace(mpi4py, "") + "    bash -c true\n"
        horovod.write_text(f"{head}\n%labels\n{without_test(tail).partition('%labels')[2]}")
        libraries = folder / "definitions/libraries/libraries.def"
        libraries.write_text(without_test(libraries.read_text()))
    (folder / "definitions/images.yaml").write_text(CATALOG.format(more=more, features=features, older=older))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ngc")
    project(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def make(pytorch_cpu: Path, work: Path) -> Callable[[str], Image]:  # noqa: ARG001  # brings the base
    plan = json.loads(ctrain("build", "pytorch-cpu", "--plan", "--json").stdout)
    base = build_cache.Cache(default_root()).layers.path(plan["images"][0]["layers"][0]["key"], True)
    ngc_stand_in.pack(base, work / "base.tar", whole=WHOLE)

    @functools.cache
    def make(tag: str) -> Image:
        release, cache = ngc_stand_in.RELEASES[tag], work / f"cache-{tag}"
        with registry.serve(work / f"registry-{tag}") as served:
            digest = served.push(
                ngc_stand_in.layout(work / "base.tar", work / "oci", release, whole=WHOLE), release.name
            )
            shutil.rmtree(work / "oci")
            argv = ["stand-in", "--tag", tag, "--definitions", str(work / "definitions"), "--cache", str(cache)]
            for argument in (f"REGISTRY={served.host}", "COMPRESSION=lz4"):
                argv += ["--build-arg", argument]
            done = ctrain("build", *argv, "--json", timeout=1800)
        assert done.returncode == 0, done.stderr
        [sif] = (cache / "images").glob("*.sif")
        manifest = json.loads(sif.with_suffix(".json").read_text())
        logs = "".join(path.read_text(errors="replace") for path in (cache / "logs").iterdir())
        return Image(sif, manifest, f"{served.host}/{release.name}", digest, release, logs)

    return make


@pytest.fixture(scope="module")
def image(make: Callable[[str], Image]) -> Image:
    return make("26.08")


@pytest.mark.parametrize("tag", TAGS)
def test_each_release_gets_the_newest_that_its_packages_allow(make: Callable[[str], Image], tag: str) -> None:
    """Its torch is a pre-release, and a constraint file keeps what it names. pip agrees, but for what is left out."""
    image = make(tag)
    packages = {name: image.versions(name) for name in PACKAGES[tag]}
    assert packages == PACKAGES[tag]
    assert image.versions("torch") == image.release.torch
    lacks = image.run("python3", "-m", "pip", "check").stdout.splitlines()
    assert [line for line in lacks if "hf-xet" not in line and not line.startswith("torchvision")] == []


@pytest.mark.parametrize("tag", TAGS)
def test_horovod_is_compiled_as_torch_asks(make: Callable[[str], Image], tag: str) -> None:
    image = make(tag)
    standard = 20 if WHOLE else image.release.standard  # the whole ones have torch 2.13
    assert f"set(CMAKE_CXX_STANDARD {standard})" in image.logs
    assert f"set(CMAKE_CUDA_STANDARD {min(standard, 17)})" in image.logs
    assert ("Collecting cmake==3.31.6" in image.logs) is bool(image.release.files), "3.14.6 is too old"


@pytest.mark.parametrize("tag", TAGS)
def test_no_build_asks_an_index_of_the_image(make: Callable[[str], Image], tag: str) -> None:
    """pip would try each of its pages five times."""
    image = make(tag)
    assert "Successfully installed" in image.logs
    assert "Retrying" not in image.logs and ngc_stand_in.INDEX not in image.logs
    assert ngc_stand_in.INDEX in image.run("cat", "/etc/pip.conf").stdout


def test_the_base_is_known_by_its_digest(image: Image) -> None:
    assert image.manifest["base"] == {"reference": image.reference, "digest": image.digest}
    assert image.manifest["software"]["torch"].startswith(image.release.torch)


def test_what_the_image_has_stays_and_its_constraint_file_decides(image: Image) -> None:
    # setuptools is there, whatever the file says; cffi and psutil are named there; pyyaml is the definition's.
    assert image.versions("setuptools", "cffi", "psutil", "pyyaml") == "80.9.0 1.16.0 6.1.1 6.0.3"


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

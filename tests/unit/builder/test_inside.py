"""The programs that run inside images, here beside packages that look like those of an image."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ctrain_builder.testing.reuse import INSIDE, VERSIONS

Done = subprocess.CompletedProcess[str]
DPKG = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Package: not this one

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: held
Status: hold ok installed
Architecture: all
Version: 1:2.3
"""


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"inside_{name}", INSIDE / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The folder that is the Python path and the PATH of programs inside: with a torch for two GPUs, and an MPI."""
    root = tmp_path / "image"
    write(root, "torch/__init__.py", TORCH)
    write(root, "torch/lib/libtorch.so", "machine code")
    write(root, "torch-2.6.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n")
    write(root, "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.7'\n").chmod(0o755)
    return root


TORCH = """
class cuda:
    class nccl:
        version = staticmethod(lambda: (2, 23, 4))
class version:
    cuda = "12.6"
class _C:
    _cuda_getArchFlags = staticmethod(lambda: "sm_70 sm_90 sm_120 compute_120")
__version__ = "2.6.0a0+df5bbc0"
"""


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(image: Path, program: str, *argv: str) -> Done:
    environment = {
        "PYTHONPATH": f"{image}:{VERSIONS.parent}",
        "PATH": f"{image}:{os.defpath}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, str(INSIDE / program), *argv]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def facts(image: Path) -> dict[str, Any]:
    done = run(image, "unchanged.py")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_versions_and_packages(image: Path) -> None:
    done = run(image, "examine.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    software = {
        "torch": "2.6.0a0+df5bbc0",
        "cuda": "12.6",
        "nccl": "2.23.4",
        "arch": "7.0 9.0 12.0",
        "mpi": "Open MPI 4.1.7",
    }
    assert software.items() <= told["software"].items()
    assert told["packages"]["pypi"]["torch"] == "2.6.0"


@pytest.mark.parametrize(
    ("torch", "versions", "software"),
    [
        ("2.6.0+rocm6.2.4", 'hip = "6.2.41133-dd7f95766"', {"rocm": "6.2.41133-dd7f95766"}),
        ("2.8.0+xpu", 'hip = None\n    xpu = "20250101"', {"xpu": "20250101"}),
    ],
)
def test_a_torch_for_gpus_of_amd_or_intel(image: Path, torch: str, versions: str, software: dict[str, str]) -> None:
    """As torch.version is in the wheels; not run on such hardware."""
    write(image, "torch/__init__.py", f'class version:\n    cuda = None\n    {versions}\n__version__ = "{torch}"\n')
    told = json.loads(run(image, "examine.py").stdout)["software"]
    assert told.items() >= {"torch": torch, **software}.items()
    assert "cuda" not in told


def test_a_broken_framework_is_told_by_its_tests_only(image: Path) -> None:
    write(image, "torch/__init__.py", "raise OSError('libcuda.so.1: cannot open shared object file')")
    told = json.loads(run(image, "examine.py").stdout)["software"]
    assert told["torch"] == "2.6.0"
    assert "cuda" not in told


def test_dpkg_tells_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = module("packages")
    monkeypatch.setattr(packages, "STATUS", write(tmp_path, "status", DPKG))
    assert packages.dpkg() == [
        {"package": "libc6", "version": "2.36-9+deb12u10", "architecture": "amd64"},
        {"package": "held", "version": "1:2.3", "architecture": "all"},
    ]
    monkeypatch.setattr(packages, "STATUS", tmp_path / "none")
    assert packages.dpkg() == []


def test_the_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = module("packages")
    text = 'PRETTY_NAME="Ubuntu 22.04"\nID=ubuntu\nVERSION_CODENAME="jammy"\nID_LIKE=debian\n'
    monkeypatch.setattr(packages, "RELEASE", write(tmp_path, "os-release", text))
    assert packages.system() == {"ID": "ubuntu", "VERSION_CODENAME": "jammy"}


def test_python_packages_by_the_name_that_pip_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name, version in (
        ("first", "Foo_Bar.baz", "2.0"),
        ("second", "foo-bar-baz", "1.0"),
        ("second", "", "3"),
    ):
        write(
            tmp_path, f"{folder}/{name or 'left'}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n"
        )
    (tmp_path / "first/empty.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert module("packages").python() == {"foo-bar-baz": "2.0"}


@pytest.mark.parametrize(
    ("lines", "licenses"),
    [
        ("License-Expression: MIT AND PSF-2.0\nLicense: MIT License", ["MIT AND PSF-2.0"]),
        ("License: Apache 2.0\nClassifier: License :: OSI Approved :: BSD License", ["Apache 2.0"]),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: BSD License", ["BSD License"]),
        (f"License: Copyright (c) {'x' * 80}\nClassifier: License :: OSI Approved :: BSD License", ["BSD License"]),
        (
            "License: Copyright (c) Kim\n        All rights reserved.\nClassifier: License :: Public Domain",
            ["Public Domain"],
        ),
        ("Classifier: License :: OSI Approved\nClassifier: Topic :: Text", []),
        ("Summary: x", []),
    ],
)
def test_the_licence_of_a_python_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, licenses: list[str]
) -> None:
    packages = module("packages")
    monkeypatch.setattr(packages, "STATUS", tmp_path / "none")
    write(tmp_path, "x-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: x\nVersion: 1\n{lines}\n\nText\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert packages.licenses() == {"pypi": {"x": licenses}, "deb": {}}


def test_the_licences_of_debian_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = module("packages")
    monkeypatch.setattr(packages, "STATUS", write(tmp_path, "status", DPKG))
    monkeypatch.setattr(packages, "DOCUMENTS", tmp_path)
    monkeypatch.setattr(sys, "path", [])
    text = "Format: https://x\n\nFiles: *\nLicense: GPL-2+\n\nFiles: x\nLicense: Expat\n text\n\nLicense: GPL-2+\n"
    write(tmp_path, "libc6/copyright", text + f"License: {'x' * 81}\nLicense:\n")
    write(tmp_path, "held/copyright", "This is\nLicense: free\n")
    assert packages.licenses() == {"pypi": {}, "deb": {"libc6": ["Expat", "GPL-2+"], "held": []}}


def test_what_is_as_in_the_base_passes(image: Path) -> None:
    before = facts(image)
    write(image, "torch/__pycache__/x.cpython-311.pyc", "compiled since")
    write(image, "numpy/__init__.py", "__version__ = '1'")
    (image / "torch/broken").symlink_to("nowhere")
    done = run(image, "unchanged.py", json.dumps(before))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("torch/lib/libtorch.so", "machine cod3", "files of torch: "),
        ("torch/lib/libmore.so", "", "files of torch: "),
        ("torch/__init__.py", TORCH.replace("df5bbc0", "eeeeee0"), "torch: 2.6.0a0+df5bbc0 -> 2.6.0a0+eeeeee0"),
        ("torch/__init__.py", TORCH.replace("23, 4", "23, 5"), "nccl: 2.23.4 -> 2.23.5"),
        ("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.10'\n", "mpi: Open MPI 4.1.7 -> Open MPI 5.0.10"),
    ],
)
def test_what_an_upper_layer_has_changed_is_named(image: Path, name: str, text: str, told: str) -> None:
    before = facts(image)
    write(image, name, text)
    done = run(image, "unchanged.py", json.dumps(before))
    assert done.returncode == 1
    assert told in done.stderr


def test_a_renamed_file_counts_as_changed(image: Path) -> None:
    before = facts(image)
    (image / "torch/lib/libtorch.so").rename(image / "torch/lib/libtorch_cpu.so")
    assert "files of torch: " in run(image, "unchanged.py", json.dumps(before)).stderr


def test_a_removed_framework_is_named(image: Path) -> None:
    before = facts(image)
    (image / "torch-2.6.0.dist-info").rename(image / "gone")
    (image / "torch").rename(image / "torch-old")
    done = run(image, "unchanged.py", json.dumps(before))
    assert "torch: 2.6.0a0+df5bbc0 -> None" in done.stderr
    assert "files of torch: " in done.stderr


PYTHON = ".".join(map(str, sys.version_info[:2]))
DECLARED = {"python": PYTHON, "mpi": "", "constraints": "", "sm": "7.0 9.0+PTX"}


def declared(image: Path, **facts: str) -> Done:
    return run(image, "declared.py", json.dumps({**DECLARED, "mpi": str(image), **facts}))


def test_an_image_as_declared(image: Path) -> None:
    (image.parent / "mpi").symlink_to(image)  # as NGC's /usr/local/mpi
    done = declared(image, constraints=str(image / "mpirun"), mpi=str(image.parent / "mpi"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"python": "3.1"}, f"python is {PYTHON}"),
        ({"mpi": "/opt/hpcx/ompi"}, "image/mpirun, not in /opt/hpcx/ompi"),
        ({"constraints": "/etc/pip/no-such-file.txt"}, "there is no file /etc/pip/no-such-file.txt"),
        ({"sm": "7.0 8.0"}, "not compiled for GPUs of sm 8.0, only for 7.0 9.0 12.0"),
    ],
)
def test_what_is_not_as_declared_is_named(image: Path, wrong: Mapping[str, str], told: str) -> None:
    done = declared(image, **wrong)
    assert done.returncode == 1
    assert told in done.stderr


CHECK_BUILD = """\
Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [X] MPI
    [X] Gloo
"""


@pytest.mark.parametrize(
    ("features", "code"),
    [("Gloo MPI PyTorch", 0), ("MPI PyTorch", 1), ("Gloo MPI PyTorch NCCL", 1), ("Gloo MPI TensorFlow", 1)],
)
def test_horovod_has_exactly_what_is_declared(image: Path, features: str, code: int) -> None:
    write(image, "horovodrun", f"#!/bin/sh\ncat <<'END'\n{CHECK_BUILD}END\n").chmod(0o755)
    done = run(image, "horovod_build.py", *features.split())
    assert done.returncode == code, done.stderr
    assert not code or "Horovod was built with Gloo MPI PyTorch, not with " in done.stderr


def test_the_forks_of_horovodrun_get_torch_from_it(image: Path) -> None:
    program = f"""\
#!{sys.executable}
import sys
assert "torch" in sys.modules
assert sys.argv[1:] == ["--check-build"]
print({CHECK_BUILD!r})
"""
    write(image, "horovodrun", program).chmod(0o755)
    done = run(image, "horovod_build.py", "PyTorch", "MPI", "Gloo")
    assert done.returncode == 0, done.stderr


def test_horovod_for_tensorflow_names_pytorch_too(image: Path) -> None:
    said = CHECK_BUILD.replace("[ ] TensorFlow", "[X] TensorFlow")
    assert "[X] PyTorch" in said
    write(image, "horovodrun", f"#!/bin/sh\ncat <<'END'\n{said}END\n").chmod(0o755)
    assert run(image, "horovod_build.py", "TensorFlow", "MPI", "Gloo").returncode == 0


@pytest.mark.parametrize("program", [*sorted(INSIDE.glob("*.py")), VERSIONS], ids=lambda path: path.name)
def test_the_python_of_old_images_reads_it(program: Path) -> None:
    """NGC's 22.03 has Python 3.8."""
    ast.parse(program.read_text(encoding="utf-8"), feature_version=(3, 8))

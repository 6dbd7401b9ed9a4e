"""definitions/python_packages.py, on package directories made by hand and with a pip that installs from a table."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import packaging
import pytest

PROGRAM = Path(__file__).parents[3] / "definitions" / "python_packages.py"
FAKE_PIP = """\
import json, pathlib, shutil, sys
here = pathlib.Path(__file__).parents[1]
index, site = json.loads((here / "index.json").read_text()), here / "site"
with (here / "asked").open("a") as asked:
    print(*sys.argv[1:], file=asked)
for word in sys.argv[3:]:
    name, _, version = word.partition("==")
    version = version or sorted(index[name])[0]
    for old in site.glob(f"{name}-[0-9]*.dist-info"):
        shutil.rmtree(old)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    requires = "".join(f"Requires-Dist: {line}\\n" for line in index[name][version])
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{requires}")
"""
TORCH = {"torch": "2.6.0a0+df5bbc0"}


@dataclass(frozen=True)
class Image:
    """What an image has, and the versions that pip can get, each with what it requires."""

    root: Path

    def add(self, name: str, version: str, *requires: str) -> None:
        info = self.root / "site" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}")

    def run(self, *argv: str, constraints: str = "") -> subprocess.CompletedProcess[str]:
        """Run the program and pip, which would take longer to start than to run, in this process."""
        (self.root / "constraints.txt").write_text(constraints)
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            standard = [path for path in sys.path if "packages" not in path]
            patch.setattr(sys, "path", [str(PROGRAM.parent), str(self.root), str(self.root / "site"), *standard])
            patch.setattr(sys, "argv", [str(PROGRAM), *argv])
            patch.setattr(subprocess, "run", self._pip)
            patch.setenv("PIP_CONSTRAINT", str(self.root / "constraints.txt"))
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(PROGRAM), run_name="__main__")
        message = end.value.code if isinstance(end.value.code, str) else ""
        code = 1 if message else int(end.value.code or 0)
        return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue() + message)

    def _pip(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        assert argv[:3] == [sys.executable, "-m", "pip"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", argv[2:])
            runpy.run_path(str(self.root / "pip/__main__.py"))
        return subprocess.CompletedProcess(argv, 0)

    def process(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run both as the processes that they are in an image."""
        env = {**os.environ, "PYTHONPATH": f"{self.root}:{self.root / 'site'}"}
        return subprocess.run([sys.executable, "-S", str(PROGRAM), *argv], env=env, capture_output=True, text=True)

    def install(self, *argv: str, constraints: str = "") -> str:
        """What the program says when it refuses; "" if it has installed all."""
        done = self.run("install", *argv, constraints=constraints)
        assert done.returncode == (1 if done.stderr else 0), done.stderr
        return done.stderr.replace(str(self.root), "").strip().replace("Python packages: ", "")

    @property
    def packages(self) -> dict[str, str]:
        names = (path.name[: -len(".dist-info")] for path in (self.root / "site").glob("*.dist-info"))
        return dict(name.rsplit("-", 1) for name in names)  # type: ignore[arg-type]  # each has two parts

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []


INDEX: dict[str, dict[str, list[str]]] = {
    "transformers": {
        "5.23.0": ["safetensors>=0.8.0", "regex>=2025.10.22", 'torch>=2.6; extra == "torch"'],
        "5.12.1": ["safetensors>=0.4.3", "regex>=2025.10.22", 'torch>=2.4; extra == "torch"'],
    },
    "safetensors": {"0.7.0": [], "0.8.0": []},
    "regex": {"2024.11.6": [], "2026.11.15": []},
    "hub": {"2.4.0": ["hf-xet>=1.6", "regex"]},
    "pydantic": {"2.10.6": ["pydantic-core==2.27.2"]},
    "pydantic-core": {"2.27.2": []},
}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """An image with packages as old as NVIDIA's, and torch 2.6.0a0."""
    (tmp_path / "packaging").symlink_to(Path(packaging.__file__).parent)  # all else of this Python stays out
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__init__.py").touch()
    (tmp_path / "pip/__main__.py").write_text(FAKE_PIP)
    (tmp_path / "index.json").write_text(json.dumps(INDEX))
    image = Image(tmp_path)
    for name, version in {**TORCH, "safetensors": "0.7.0", "regex": "2024.11.6"}.items():
        image.add(name, version)
    return image


PINS = ("transformers[torch]==5.12.1", "safetensors==0.8.0", "regex==2026.11.15")


def test_only_what_is_too_old_is_raised(image: Image) -> None:
    assert image.install(*PINS) == ""
    assert image.packages == {"transformers": "5.12.1", "safetensors": "0.7.0", "regex": "2026.11.15", **TORCH}
    assert image.asked == ["install --no-deps transformers==5.12.1", "install --no-deps regex==2026.11.15"]


def test_as_processes_it_is_the_same(image: Image) -> None:
    done = image.process("install", *PINS)
    assert (done.returncode, done.stderr) == (0, "")
    assert image.asked == ["install --no-deps transformers==5.12.1", "install --no-deps regex==2026.11.15"]
    assert image.process("has", "regex>=2027").returncode == 10
    refused = image.process("install", "hub==2.4.0")
    assert refused.returncode == 1 and refused.stderr.startswith("Python packages: hub 2.4.0 needs hf-xet>=1.6; ")


def test_nothing_is_asked_of_pip_where_nothing_is_missing(image: Image) -> None:
    assert image.install("safetensors==0.8.0", "regex==2026.11.15") == ""
    assert image.asked == []


def test_a_torch_that_is_too_old_is_named(image: Image) -> None:
    refused = image.install("transformers[torch]==5.23.0", *PINS[1:])
    assert refused == (
        "transformers 5.23.0 needs torch>=2.6; the image has torch 2.6.0a0+df5bbc0, "
        "and the definition does not pin it: change the definition"
    )


def test_what_the_constraint_file_keeps_is_named(image: Image) -> None:
    refused = image.install(*PINS, constraints="numpy==1.26.4 # tested\nRegex==2024.11.6\n")
    assert refused == (
        "transformers 5.12.1 needs regex>=2025.10.22; the image has regex 2024.11.6, and its constraint file "
        "(/constraints.txt) says Regex==2024.11.6: choose a transformers that works with it"
    )


def test_a_pin_that_is_too_old_is_named(image: Image) -> None:
    refused = image.install("transformers==5.12.1", "regex==2024.11.6")
    assert refused.endswith("has regex 2024.11.6, and the definition pins regex==2024.11.6: change the definition")


def test_what_a_package_needs_and_nobody_brings_is_named(image: Image) -> None:
    refused = image.install("hub==2.4.0")
    assert refused.startswith(
        "hub 2.4.0 needs hf-xet>=1.6; the image has no hf-xet, and the definition does not pin it"
    )


def test_what_a_definition_goes_without_is_not_needed(image: Image) -> None:
    assert image.install("--without", "HF_xet", "hub==2.4.0") == ""


def test_a_version_of_the_constraint_file_is_taken(image: Image) -> None:
    image.add("numpy", "1.26.4")
    constraints = "pydantic-core==2.27.2\nhub>=1,<9\nabsent==1\n--no-binary x\n"
    argv = ("--without", "hf-xet", "hub==2.4.0", "pydantic-core==2.50.4")
    assert image.install(*argv, constraints=constraints) == ""
    assert image.asked == ["install --no-deps hub==2.4.0 pydantic-core"]


def test_raising_must_not_break_what_the_image_has(image: Image) -> None:
    image.add("tokenizer", "1.0", "regex<2025")
    assert image.install(*PINS) == (
        "tokenizer 1.0 needs regex<2025, but transformers 5.12.1 needs regex>=2025.10.22, "
        "so it was raised to 2026.11.15; choose other versions"
    )


def test_what_the_image_lacks_from_the_start_is_not_our_business(image: Image) -> None:
    image.add("odd", "1.0", "regex>=9999", "nothing", 'torch>=99; python_version < "3"', "torch (>=1")
    assert image.install(*PINS) == ""


def test_a_source_that_is_compiled_later_counts(image: Image) -> None:
    """deepspeed.def: what DeepSpeed needs is there before its operators are compiled."""
    image.add("pydantic", "1.10.2")
    info = image.root / "source" / "deepspeed.egg-info"
    info.mkdir(parents=True)
    (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: deepspeed\nVersion: 0.19.8\n")
    (info / "requires.txt").write_text("pydantic>=2.0.0\n\n[dev]\nnothing\n")
    pins = ("pydantic==2.10.6", "pydantic-core==2.27.2")
    assert image.install("--for", str(image.root / "source"), *pins) == ""
    assert image.packages["pydantic"] == "2.10.6"
    assert image.asked == ["install --no-deps pydantic-core==2.27.2", "install --no-deps pydantic==2.10.6"]


@pytest.mark.parametrize("content", [None, "Metadata-Version: 1.0\nName: regex\nVersion: 20-x?\n"])
def test_a_remnant_is_named_by_its_path(image: Image, content: str | None) -> None:
    for info in (image.root / "site").glob("regex*"):
        (info / "METADATA").unlink()
        info.rmdir()
    remnant = image.root / "site" / "regex-2024.11.6-py3.12.egg-info"
    remnant.mkdir()
    if content:
        (remnant / "PKG-INFO").write_text(content)
    (image.root / "site" / "other.egg-info").mkdir()  # of no concern
    message = "names no version of regex: remove it from the image, in a layer below"
    assert image.install(*PINS) == f"/site/{remnant.name} {message}"
    assert image.run("has", "regex>=2025").returncode == 1


@pytest.mark.parametrize(
    ("verb", "requirement", "constraints", "code"),
    [
        ("has", "torch>=2.6", "", 10),
        ("has", "torch>=2.4", "", 0),
        ("has", "python>=3.8", "", 0),
        ("has", "python>=9", "", 10),
        ("has", "absent", "", 10),
        ("allows", "regex>=2025.10.22", "", 0),
        ("allows", "regex>=2025.10.22", "REGEX == 2024.11.6", 10),
        ("allows", "regex>=2025.10.22", 'regex==2024.11.6; python_version < "3"', 0),
        ("allows", "absent>=2", "absent==1", 10),
        ("allows", "absent>=2", "absent==3\n# no more", 0),
        ("allows", "absent>=2", "absent<9", 0),
    ],
)
def test_questions(image: Image, verb: str, requirement: str, constraints: str, code: int) -> None:
    assert image.run(verb, requirement, constraints=constraints).returncode == code


def test_one_package_for_a_pip_command(image: Image) -> None:
    assert image.run("pin", "mpi4py==4.1.2").stdout == "mpi4py==4.1.2\n"
    assert image.run("pin", "mpi4py==4.1.2", constraints="mpi4py==4.0.0").stdout == "mpi4py\n"


def layer_shell(image: Image, script: str) -> str:
    """What a %post says that sources python_layer.sh."""
    text = (PROGRAM.parent / "python_layer.sh").read_text()
    work = image.root / "work"
    work.mkdir()
    (work / "python_packages.py").symlink_to(PROGRAM)
    (work / "python_layer.sh").write_text(text.replace("for part in /.singularity.d/env/*.sh", "for part in /dev/null"))
    (image.root / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (image.root / "python3").chmod(0o755)
    env = {"PYTHONPATH": f"{image.root}:{image.root / 'site'}", "PATH": f"{image.root}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/sh", "-euc", f'work={work}; . "$work/python_layer.sh"\n{script}'],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("extensions", "standard"),
    [
        ("cuda_cflags = ['-std=c++14']", "14"),
        ("common_cflags += ['-std=c++17', '-fPIC']\nsycl = '-std=c++17'", "17"),
        ("flags (e.g. ``-std=c++17``)\ncommon_cflags += ['-std=c++20']\ncflags = ['/std:c++20']", "20"),
    ],
)
def test_the_standard_is_that_of_torchs_extensions(image: Image, extensions: str, standard: str) -> None:
    utils = image.root / "site" / "torch" / "utils"
    utils.mkdir(parents=True)
    (utils.parent / "__init__.py").touch()
    (utils / "cpp_extension.py").write_text(extensions)
    assert layer_shell(image, "torch_standard") == standard


@pytest.mark.parametrize(
    ("version", "answer"), [("3.14.6", "no"), ("3.9.20", "no"), ("3.18.0", "yes"), ("3.31.6", "yes"), ("4.1.2", "yes")]
)
def test_an_old_cmake_is_seen(image: Image, version: str, answer: str) -> None:
    (image.root / "cmake").write_text(f"#!/bin/sh\necho cmake version {version}\necho\necho CMake suite\n")
    (image.root / "cmake").chmod(0o755)
    assert layer_shell(image, "if cmake_at_least 3.18; then echo yes; else echo no; fi") == answer


def test_questions_of_a_definition(image: Image) -> None:
    newer, older = "image_has 'torch>=2.6'", "image_has 'torch>=2.4' && image_allows 'regex>=2025'"
    script = f"if {newer}; then echo new; elif {older}; then echo old; fi"
    assert layer_shell(image, script) == "old"


def test_a_question_that_has_no_answer_ends_the_build(image: Image) -> None:
    (image.root / "site" / "other.egg-info").mkdir()
    assert layer_shell(image, "(if image_has other; then echo yes; else echo no; fi) || echo ended") == "ended"


def libraries_for(image: Image, torch: str, constraints: str) -> dict[str, str]:
    """The packages that libraries.def asks for, with their versions."""
    for info in (image.root / "site").glob("torch-*"):
        shutil.rmtree(info)
    image.add("torch", torch)
    image.add("numpy", "1.26.4")
    (image.root / "constraints.txt").write_text(constraints)
    text = (PROGRAM.parent / "libraries" / "libraries.def").read_text().replace("{{ TRANSFORMERS }}", "5.23.0")
    _, sourced, chooses = text.partition('    . "$work/python_layer.sh"\n')
    chooses, installs, _ = chooses.partition("    check_torch\n")
    assert sourced and "install_missing --without hf-xet" in chooses and installs
    asked = "install_missing() { shift 2; printf '%s\\n' \"$@\"; }"
    script = f"export PIP_CONSTRAINT={image.root}/constraints.txt\n{asked}\n{chooses}"
    pins = [line.partition("==") for line in layer_shell(image, script).splitlines()]
    return {name: version for name, _, version in pins}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the lists are for the Python of NVIDIA's newer images")
@pytest.mark.parametrize(
    ("torch", "constraints", "expected"),
    [
        # transformers takes 2.6.0a0 for 2.6, and from 4.53 on imports TransformGetItemToIndex, which 24.12 lacks.
        ("2.6.0a0+df5bbc0", "", {"transformers[torch]": "4.52.4", "megatron-core": "0.15.2"}),
        ("2.5.0a0+e000cf0", "packaging==23.2", {"transformers[torch]": "5.12.1", "megatron-core": None}),
        ("2.6.0", "", {"transformers[torch]": "5.23.0", "megatron-core": "0.16.1", "torchmetrics": "1.9.0"}),
        ("2.14.0a0+4fdf77b", "safetensors==0.7.0", {"transformers[torch]": "5.12.1"}),
        ("2.14.0a0+4fdf77b", "regex==2024.11.6", {"transformers[torch]": "4.57.6", "huggingface-hub": "0.36.2"}),
        # What hub, torchmetrics and megatron-core need
        ("2.14.0a0+4fdf77b", "idna==3.11", {"transformers[torch]": "5.12.1"}),
        ("2.14.0a0+4fdf77b", "click==8.3.1", {"transformers[torch]": "4.57.6"}),
        (
            "2.14.0a0+4fdf77b",
            "packaging==23.2\nlightning-utilities==0.15.2",
            {"transformers[torch]": "5.23.0", "megatron-core": None, "torchmetrics": "1.8.2"},
        ),
    ],
)
def test_libraries_are_what_torch_and_the_constraint_file_allow(
    image: Image, torch: str, constraints: str, expected: dict[str, str | None]
) -> None:
    chosen = libraries_for(image, torch, constraints)
    assert {name: chosen.get(name) for name in expected} == expected

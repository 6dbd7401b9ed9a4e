"""Layers that machines share through a real registry. A machine is a cache of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import RegistryError
from samples import tiny
from samples.registry import serve

CTRAIN = str(Path(__file__).parents[2] / ".venv" / "bin" / "ctrain")
LAYERS = ("base", "tools", "code")
IMAGES = """\
images:
  small:
    chain: [base, tools, code]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = """\
Bootstrap: localimage
From: {tiny}

%arguments
    VERSION=1.0

%post
    mkdir -p /opt/base

%labels
    version {{{{ VERSION }}}}
"""
# It is another layer each time that it is built: equal ones were built once.
UPPER = """\
Bootstrap: localimage
From: {{{{ PARENT }}}}

%post
    head -c 32 /dev/urandom > /opt/base/{name}

%test
    test -s /opt/base/{name}
"""


class Machine:
    def __init__(self, folder: Path, name: str) -> None:
        self.definitions, self.cache = folder / "definitions", folder / name

    def ctrain(self, *argv: str) -> subprocess.CompletedProcess[str]:
        places = ["--definitions", str(self.definitions), "--cache", str(self.cache)]
        env = {**os.environ, "CTRAIN_SITE": "local"}
        return subprocess.run([CTRAIN, *argv, *places], env=env, capture_output=True, text=True)

    def build(self, *options: str, code: int = 0) -> list[str]:
        """The lines of a build that ends with `code`."""
        done = self.ctrain("build", "small", *options)
        assert done.returncode == code, done.stdout + done.stderr
        return [*done.stdout.splitlines(), *done.stderr.splitlines()]

    def plan(self, *options: str) -> dict[str, dict[str, Any]]:
        done = self.ctrain("build", "small", "--plan", "--json", *options)
        assert done.returncode == 0, done.stderr
        (image,) = json.loads(done.stdout)["images"]
        return {layer["definition"]: layer for layer in image["layers"]}

    @property
    def manifest(self) -> dict[str, Any]:
        found = json.loads((self.cache / "images/small_1.0-s.json").read_text())
        assert isinstance(found, dict)
        return found

    @property
    def layers(self) -> dict[str, dict[str, Any]]:
        """What the image is made of, by definition."""
        return {layer["definition"]: layer for layer in self.manifest["layers"]}

    def has_nothing_half_done(self) -> bool:
        names = {path.stem for path in (self.cache / "layers").iterdir()}
        files = len(list((self.cache / "layers").iterdir()))
        return (
            names == {layer["key"] for layer in self.layers.values()}
            and files == 2 * len(LAYERS)
            and not list((self.cache / "tmp").iterdir())
        )


def outcomes(lines: list[str], kind: str = "layer") -> list[str]:
    """How the step of each layer ended."""
    words = [line.split() for line in lines if line.startswith(f"{kind} ") and " started " not in line]
    ends = {word[1]: word[2] for word in words if word[2] not in ("is", "failed")}
    return [ends.get(name, "") for name in LAYERS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"base": BASE.format(tiny=tiny.sif(tmp_path / "tiny.sif", tiny.SHELL))}
    texts |= {name: UPPER.format(name=name) for name in LAYERS[1:]}
    for name, text in texts.items():
        (tmp_path / "definitions" / name).mkdir(parents=True)
        (tmp_path / "definitions" / name / f"{name}.def").write_text(text)
    (tmp_path / "definitions/images.yaml").write_text(IMAGES)
    return tmp_path


@pytest.fixture
def stop() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def where(folder: Path, stop: ExitStack) -> str:
    """A repository of a registry that runs until `stop`."""
    if not shutil.which("docker-registry"):
        if os.environ.get("CI"):
            pytest.fail("CI must have docker-registry: see tests/cluster/install")
        pytest.skip("no docker-registry here: tests/cluster/install brings it")
    return f"oras://{stop.enter_context(serve(folder / 'registry')).host}/lab/layers"


def flip_a_bit(folder: Path, digest: str) -> None:
    """Of a blob, where the registry keeps it."""
    word = digest.partition(":")[2]
    path = folder / "registry/images/docker/registry/v2/blobs/sha256" / word[:2] / word / "data"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_what_one_machine_built_others_download(folder: Path, where: str, stop: ExitStack) -> None:
    ci, fresh, later, alone = (Machine(folder, name) for name in ("ci", "fresh", "later", "alone"))
    lines = ci.build("--cache-from", where, "--cache-to", where)
    assert outcomes(lines) == ["built"] * 3
    assert outcomes(lines, "upload") == ["", "uploaded", "uploaded"]
    assert [line for line in lines if "not uploaded" in line] == [
        "layer base is not uploaded: it holds an image of others; where its licence allows that: --cache-bases"
    ]

    # Bases are built alike, so what was built on one fits the other. No %post of the others runs: each would differ.
    lines = fresh.build("--cache-from", where)
    assert outcomes(lines) == ["built", "downloaded", "downloaded"]
    assert fresh.layers == ci.layers
    assert [test["name"] for test in fresh.manifest["tests"]] == [test["name"] for test in ci.manifest["tests"]]
    assert fresh.has_nothing_half_done()
    assert "is up to date" in fresh.build()[-1]

    # The whole plan, once the base is there, too; other keys and newer layers are not.
    assert outcomes(ci.build("--cache-to", where, "--cache-bases"), "upload") == ["uploaded", "exists", "exists"]
    assert {name: layer["download"] for name, layer in later.plan("--cache-from", where).items()} == {
        name: {"from": where, "size": layer["size"]} for name, layer in ci.layers.items()
    }
    newer = later.plan("--cache-from", where, "--rebuild=tools")
    assert [newer[name]["state"] for name in LAYERS] == ["download", "new", "new"]
    code = folder / "definitions/code/code.def"
    text = code.read_text()
    code.write_text(text.replace("-c 32", "-c 33"))
    assert [layer["state"] for layer in later.plan("--cache-from", where).values()] == ["download", "download", "new"]
    code.write_text(text)

    # One wrong bit in the registry's own storage. What is built instead is another layer, so what is above it is, too.
    flip_a_bit(folder, ci.layers["tools"]["digest"])
    lines = later.build("--cache-from", where)
    assert outcomes(lines) == ["downloaded", "built", "built"]
    [said] = [line for line in lines if "digest mismatch" in line]
    assert said.startswith(f"layer tools is built: digest mismatch: {where}:")
    assert later.layers["base"] == ci.layers["base"] and later.layers["tools"] != ci.layers["tools"]
    assert later.has_nothing_half_done()

    # No registry: one line, and the image is built. That its layers are not uploaded is an error at the end.
    stop.close()
    lines = alone.build("--cache-from", where, "--cache-to", where, code=RegistryError.exit_code)
    assert outcomes(lines) == ["built"] * 3
    assert len([line for line in lines if line.endswith(f"no layers are taken from {where}")]) == 1
    assert any(line.startswith("small 1.0-s is built and tested") for line in lines)
    assert lines[-1].startswith("ctrain: the layers of small 1.0 are not shared: 127.0.0.1")
    assert alone.has_nothing_half_done()
    assert "is up to date" in alone.build()[-1]

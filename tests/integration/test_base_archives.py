"""A base from a docker archive, with the real engine: it is stale when the archive has changed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from samples import tiny

CTRAIN = str(Path(__file__).parents[2] / ".venv" / "bin" / "ctrain")
IMAGES = "images:\n  small: {chain: [base], stack: s, tag: '1.0', tag_argument: VERSION}\n"
BASE = """\
Bootstrap: docker-archive
From: ../../base.tar

%test
    test -e /word

%labels
    version {{ VERSION }}
"""


def write_archive(archive: Path, rootfs: Path, word: str) -> None:
    """As `docker save` writes it: a configuration, and a layer with a file `word`."""
    (rootfs / "word").write_text(word)
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for name in sorted(os.listdir(rootfs)):  # noqa: PTH208  # names, for the archive
            tar.add(rootfs / name, name)
    content = layer.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [digest]}}
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, data in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", content),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def test_a_changed_archive_makes_its_base_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called by a make that has variables of its own, or by whoever has a $ in one: a shell inside would expand it."""
    monkeypatch.setenv("MAKEOVERRIDES", "${-*-command-variables-*-}")
    archive, rootfs = tmp_path / "base.tar", tiny.rootfs(tmp_path / "rootfs", tiny.SHELL)
    for name, text in {"images.yaml": IMAGES, "base/base.def": BASE}.items():
        (tmp_path / "definitions" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "definitions" / name).write_text(text)

    def ctrain(*options: str) -> str:
        places = ["--definitions", str(tmp_path / "definitions"), "--cache", str(tmp_path / "cache")]
        done = subprocess.run([CTRAIN, "build", "small", *options, *places], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def word() -> str:
        image = tmp_path / "cache/images/small_1.0-s.sif"
        argv = ["apptainer", "--quiet", "exec", "--userns", str(image), "cat", "/word"]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    write_archive(archive, rootfs, "one")
    ctrain()
    assert word() == "one"
    assert "up to date" in ctrain()
    write_archive(archive, rootfs, "two")
    assert "base sha256:" in ctrain("--plan")
    ctrain()
    assert word() == "two"

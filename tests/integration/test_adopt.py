"""An image that ctrain did not build is adopted, and run from the store, by the real engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.cli.main import main
from ctrain_runtime.store import sbom
from ctrain_runtime.store.store import open_store
from samples import tiny

CTRAIN = Path(__file__).parents[2] / ".venv/bin/ctrain"
STATUS = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
METADATA = "Metadata-Version: 2.1\nName: Train-Tools\nVersion: 1.2.0\n"


def packed(folder: Path) -> Path:
    """A tiny image with a Debian and a Python package."""
    root = tiny.rootfs(folder / "rootfs")
    for path, text in {
        "var/lib/dpkg/status": STATUS,
        "etc/os-release": "ID=debian\nVERSION_CODENAME=bookworm\n",
        "usr/lib/python3/dist-packages/train_tools-1.2.0.dist-info/METADATA": METADATA,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    file = folder / "pytorch_22.03-hd-py3.sif"
    subprocess.run(["apptainer", "--quiet", "build", "--fakeroot", file, root], check=True, capture_output=True)
    return file


def test_adopted_images_are_listed_whole_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store, file = tmp_path / "store", packed(tmp_path)
    init_store(store)
    key, public, signed = tmp_path / "key.pem", tmp_path / "key.pub", tmp_path / "signed_1.0.sif"
    signed.write_bytes(file.read_bytes())
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    key.chmod(0o600)
    public.write_bytes(
        subprocess.run(["openssl", "pkey", "-in", key, "-pubout"], check=True, capture_output=True).stdout
    )
    subprocess.run(["apptainer", "sign", "--key", key, signed], check=True)
    before = {path: (file_digest(path), path.stat().st_mtime_ns) for path in (file, signed)}

    options = ["--store", str(store), "--channel", "prod", "--yes"]
    assert main(BUILD_VERBS, ["store", "adopt", str(file), str(signed), *options]) == 0
    assert {path: (file_digest(path), path.stat().st_mtime_ns) for path in (file, signed)} == before
    assert [one.manifest.reference for one in open_store(store).images()] == [
        "pytorch:22.03-hd-r1",
        "signed:1.0-adopted-r1",
    ]
    assert main(BUILD_VERBS, ["store", "verify", "--store", str(store)]) == 0
    copy = store / "pytorch_22.03-hd-py3-r1.sif"
    assert sbom.packages(copy) == {("deb", "libc6"): "2.36-9", ("pypi", "train-tools"): "1.2.0"}
    verify = ["apptainer", "verify", "--key", public, store / "signed_1.0-adopted-py3-r1.sif"]
    assert subprocess.run(verify, check=False).returncode == 0, "its signature holds"

    file.unlink()
    words = ["run", "--site", "local", "--store", "store", "--image", "pytorch", "--", "python3", "-c", "print(6 * 7)"]
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([CTRAIN, *words], cwd=tmp_path, env=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout.split()
    assert "pytorch:22.03-hd-r1 is untested: it was adopted, ctrain did not build it" in done.stdout + done.stderr

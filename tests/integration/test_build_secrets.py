"""Secrets of `ctrain build --secret`, in real builds of a tiny image: %post reads them, and nothing keeps them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from samples import tiny

CTRAIN = str(Path(__file__).parents[2] / ".venv" / "bin" / "ctrain")
IMAGES = """\
images:
  small:
    chain: [base, upper]
    stack: s
    tag: "1.0"
    tag_argument: VERSION
"""
BASE = "Bootstrap: localimage\nFrom: {tiny}\n\n%arguments\n    VERSION=1.0\n\n%post\n    {post} {{{{ VERSION }}}}\n"
UPPER = "Bootstrap: localimage\nFrom: {{ PARENT }}\n\n%post\n"
TOKEN = "correct-horse-battery"
READ = """\
    token=$(cat /mnt/secrets/hub)
    echo "$token" | sha256sum | cut -c 1-12 > /opt/seen
    echo "with $token in the log"
"""
Build = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(POST, OPTIONS): of an image whose upper layer has this %post, with a secret `hub`."""
    folder = tmp_path / "definitions"
    base = BASE.format(tiny=tiny.sif(tmp_path / "tiny.sif", tiny.SHELL), post="test -s /mnt/secrets/hub; :")
    for name, text in (("base", base), ("upper", UPPER)):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.def").write_text(text)
    (folder / "images.yaml").write_text(IMAGES)
    (tmp_path / "token").write_text(f"{TOKEN}\n")

    def run(post: str, *options: str) -> subprocess.CompletedProcess[str]:
        (folder / "upper/upper.def").write_text(UPPER + post)
        places = ["--definitions", str(folder), "--cache", str(tmp_path / "cache"), "--secret", f"hub={tmp_path}/token"]
        argv = [CTRAIN, "build", "small", "--tests", "later", *places, *options]
        return subprocess.run(argv, capture_output=True, text=True)

    return run


def test_a_secret_is_read_and_kept_nowhere(build: Build, tmp_path: Path) -> None:
    done = build(READ)
    assert done.returncode == 0, done.stdout + done.stderr
    cache = tmp_path / "cache"
    (layer,) = (cache / "layers").glob("*.sqsh")
    seen = subprocess.run(["unsquashfs", "-cat", str(layer), "opt/seen"], capture_output=True, text=True).stdout
    expected = subprocess.run(["sha256sum"], input=f"{TOKEN}\n", capture_output=True, text=True).stdout
    assert seen.strip() == expected[:12]
    assert "with **** in the log" in "".join(path.read_text() for path in (cache / "logs").iterdir())
    listing = subprocess.run(["unsquashfs", "-l", str(layer)], capture_output=True, text=True).stdout
    assert "secrets" not in listing
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in done.stdout + done.stderr
    assert "is up to date" in build(READ).stdout, "it is in no key"
    for keep in ("cp /mnt/secrets/hub /opt/x", "cat /mnt/secrets/hub > /opt/x; touch -d @0 /opt/x"):
        kept = build(f"    {keep}\n")
        assert kept.returncode == 77
        assert "/opt/x of the layer holds a password" in kept.stderr and "or a build secret" in kept.stderr
        assert list((cache / "layers").glob("*.sqsh")) == [layer]
        assert TOKEN not in kept.stdout + kept.stderr

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.images import user_layer
from samples.layers import a_description, write_layer
from samples.plans import a_manifest


def test_what_is_sealed_is_read(tmp_path: Path) -> None:
    path = write_layer(tmp_path / "my.sqsh", a_manifest(), einops="0.8.2")
    layer = user_layer.read(path)
    assert layer.path == path
    assert layer.digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"  # as sha256sum says it
    assert layer.description == a_description(a_manifest(), {"einops": "0.8.2"})
    assert path.read_bytes().startswith(b"hsqs and what it holds{")  # what mounts it sees the squashfs as it was


def test_a_layer_is_found_through_a_link(tmp_path: Path) -> None:
    path = write_layer(tmp_path / "my.sqsh", a_manifest())
    (tmp_path / "link").symlink_to("my.sqsh")
    assert user_layer.read(tmp_path / "link").path == path


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not a user layer: not a squashfs. Build one with: ctrain layer build"),
        (b"einops==0.8.2\n", "is not a user layer: not a squashfs"),
        (b"hsqs", "is truncated, or was not built by ctrain. Copy or build it again"),
        (b"hsqs" + bytes(4096), "is truncated, or was not built by ctrain"),
    ],
)
def test_what_is_no_layer_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "x.sqsh").write_bytes(content)
    with pytest.raises(ImageUnusable, match=f"x.sqsh {complaint}"):
        user_layer.read(tmp_path / "x.sqsh")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ImageUnusable, match=r"cannot read layer .*x.sqsh: No such file or directory"):
        user_layer.read(tmp_path / "x.sqsh")


def test_a_changed_layer_is_refused(tmp_path: Path) -> None:
    path = write_layer(tmp_path / "my.sqsh", a_manifest())
    path.write_bytes(path.read_bytes().replace(b"what it holds", b"what it hides"))
    with pytest.raises(ImageUnusable, match=r"checksum mismatch: layer .*my.sqsh was modified"):
        user_layer.read(path)


def test_a_key_that_is_none(tmp_path: Path) -> None:
    """It becomes part of a script."""
    path = tmp_path / "my.sqsh"
    path.write_bytes(b"hsqs")
    user_layer.seal(path, a_description(a_manifest(), {}, key="$(reboot)"))
    with pytest.raises(ImageUnusable, match=r"unsupported layer .*: invalid key"):
        user_layer.read(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "my.sqsh")
    with pytest.raises(ImageUnusable, match="not a regular file"):
        user_layer.read(tmp_path / "my.sqsh")

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import pytest

from ctrain_builder.files.digests import Region
from ctrain_builder.store import copy as module
from ctrain_builder.store.copy import (
    copy,
    fill,
    is_lustre,
    resumable_file,
    resume_offset,
    shared,
    temporary,
)
from ctrain_builder.store.writer import Permissions
from ctrain_runtime.base import file_systems
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Layer
from ctrain_runtime.store.sif import PARTITION
from ctrain_runtime.store.store import PublishedImage
from samples.plans import a_manifest
from samples.sample_images import sif as a_sif


@pytest.mark.parametrize("size", [0, 1, 4096, 10_000_001])
def test_a_copy_and_its_digest(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "source").write_bytes(content)
    told: list[int] = []
    with temporary(tmp_path, "x.sif") as target:
        assert target.name.startswith(".x.sif.")
        digest = copy(tmp_path / "source", target, Permissions(tmp_path.stat()), done=told.append).digest
        assert target.read_bytes() == content
    assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert told[-1:] == ([size] if size else [])
    assert told == sorted(told)
    assert not target.exists()


def test_the_digest_is_of_what_is_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parts that are taken by reference too: here "by reference" writes something else."""
    (tmp_path / "source").write_bytes(b"a" * 20000)

    def clone(offset: int, region: Region, writer: BinaryIO) -> tuple[int, int]:
        os.pwrite(writer.fileno(), b"b" * region.size, offset)
        return offset, offset + region.size

    monkeypatch.setattr(module, "_clone", clone)
    known = {4096: Region(tmp_path / "source", 0, 8192)}
    with temporary(tmp_path, "x.sif") as target:
        digest = copy(tmp_path / "source", target, Permissions(tmp_path.stat()), known=known).digest
        wanted = b"a" * 4096 + b"b" * 8192 + b"a" * (20000 - 4096 - 8192)
        assert target.read_bytes() == wanted
    assert digest == f"sha256:{hashlib.sha256(wanted).hexdigest()}"


def test_where_a_disk_copies_nothing_by_reference_all_is_copied(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"a" * 20000)
    known = {4096: Region(Path("/proc/version"), 0, 8192), 1: Region(tmp_path / "source", 0, 8192)}
    with temporary(tmp_path, "x.sif") as target:
        copy(tmp_path / "source", target, Permissions(tmp_path.stat()), known=known)
        assert target.read_bytes() == b"a" * 20000


def test_layers_that_are_published_already_are_found(tmp_path: Path) -> None:
    old, new = tmp_path / "old.sif", tmp_path / "new.sif"
    old.write_bytes(a_sif(data=b"base", more=[(PARTITION, b"one")]))
    new.write_bytes(a_sif(data=b"base", more=[(PARTITION, b"two"), (PARTITION, b"one")]))
    base, one, two = (Layer(name, name, 0, f"sha256:{name}") for name in ("base", "one", "two"))
    published = PublishedImage(a_manifest(layers=(base, one)), old, ())
    manifest = a_manifest(layers=(base, two, one))
    there, here = sif.partitions(old), sif.partitions(new)
    assert shared(new, manifest, [published]) == {
        here[0].offset: Region(old, there[0].offset, 4, base.digest),
        here[2].offset: Region(old, there[1].offset, 3, one.digest),
    }
    assert shared(new, a_manifest(layers=(base, two, one), flat=True), [published]) == {}
    assert shared(new, manifest, [PublishedImage(a_manifest(layers=(base, one), flat=True), old, ())]) == {}
    old.write_bytes(b"damaged")
    assert shared(new, manifest, [published]) == {}


def test_on_lustre_a_file_is_striped_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for `lfs` and for the kernel's table of mounts: Lustre can't exist here."""
    tools, told = tmp_path / "tools", tmp_path / "told"
    tools.mkdir()
    (tools / "lfs").write_text(f'#!/bin/sh\necho "$@" > {told}\nfor last; do :; done\n: > "$last"\n')
    (tools / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert not is_lustre(tmp_path)
    (tmp_path / "mounts").write_text(f"40 22 0:40 / {tmp_path} rw - lustre 10.0.0.1@tcp:/x rw,flock\n")
    monkeypatch.setattr(file_systems, "_TABLE", tmp_path / "mounts")
    assert is_lustre(tmp_path)
    said: list[str] = []
    with temporary(tmp_path, "x.sif", said.append) as path:
        assert path.exists()
    assert said == ["Lustre: one stripe up to 4 MB, four up to 64 MB, then one on each of its targets"]
    assert told.read_text() == f"setstripe -E 4M -c 1 -E 64M -c 4 -E -1 -c -1 -S 4M {path}\n"


def test_a_file_goes_on_where_its_copy_was(tmp_path: Path) -> None:
    content = os.urandom(20000)
    with resumable_file(tmp_path, "x.sif") as file:
        file.write_bytes(content[:9000])
    with resumable_file(tmp_path, "x.sif") as again:
        assert (again, resume_offset(again)) == (file, 8192)
    asked: list[int] = []

    def read(size: int, at: int) -> bytes:
        asked.append(at)
        return content[at : at + min(size, 5000)]

    assert fill(file, len(content), read, Permissions(tmp_path.stat()), present=8192).digest == digest(content)
    assert asked == [8192, 13192, 18192]
    assert file.read_bytes() == content
    with resumable_file(tmp_path, "x.sif"):
        assert file.stat().st_mode & 0o777 == 0o600  # what was finished can be written to again


def test_a_hole_is_where_a_copy_was_interrupted(tmp_path: Path) -> None:
    """What was taken by reference may lie behind it."""
    with (tmp_path / "x").open("wb") as file:
        assert resume_offset(tmp_path / "x") == 0
        os.pwrite(file.fileno(), b"a" * 10000, 0)
        os.pwrite(file.fileno(), b"b" * 10000, 1 << 20)
    assert resume_offset(tmp_path / "x") == 8192


def test_a_file_of_others_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    path = tmp_path / ".x.sif.part"
    for make in (os.symlink, os.link):
        make(tmp_path / "precious", path)
        with resumable_file(tmp_path, "x.sif") as file:
            assert file == path
        assert (path.stat().st_nlink, path.is_symlink(), path.stat().st_size) == (1, False, 0)
        path.unlink()
    assert (tmp_path / "precious").read_text() == "keep"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"

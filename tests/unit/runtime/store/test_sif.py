from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.store.sif import HEADER, PARTITION, SBOM, check, object_bytes, partitions, read
from samples.sample_images import sif


def damage(content: bytes, offset: int, *numbers: int) -> bytes:
    raw = struct.pack(f"<{len(numbers)}q", *numbers)
    return content[:offset] + raw + content[offset + len(raw) :]


@pytest.mark.parametrize(
    ("arch", "name"), [(b"02", "amd64"), (b"04", "arm64"), (b"06", "ppc64le"), (b"99", "an unknown architecture")]
)
def test_a_whole_image_and_its_architecture(tmp_path: Path, arch: bytes, name: str) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif(arch))
    assert check(path) == name


def test_a_fifo_is_no_image_and_nobody_waits_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    os.mkfifo(path)
    with pytest.raises(ImageUnusable, match="is not a SIF image"):
        read(path)
    writer = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(ImageUnusable, match="is not a SIF image"):
            read(path)
    finally:
        os.close(writer)


DESCRIPTORS = 32 + 10 + 3 + 3 + 16 + 4 * 8  # where the header says at which offset they lie
FIRST = HEADER.size + 4 + 1 + 3 * 4  # and where the first descriptor says at which offset its object lies


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not a SIF image. Build one with"),
        (b"#!/bin/sh\n" * 100, "is not a SIF image. Build one with"),
        (sif(magic=b"SIF_TRAGIC"), "is not a SIF image. Build one with"),
        (sif()[:127], "is not a SIF image. Build one with"),
        (sif()[:128], r"is truncated: 128 bytes of 1306. Copy or publish it again"),
        (sif()[:-1], r"is truncated: 1305 bytes of 1306. Copy or publish it again"),
        (sif(kind=0x4003), "SIF image .* has no file system"),
        (damage(sif(), DESCRIPTORS, -1), "cannot read .*: Invalid argument"),
        (damage(sif(), DESCRIPTORS, 1 << 62), "is truncated: 1306 bytes of"),
        (damage(sif(), DESCRIPTORS - 8, 1 << 62), "has a damaged SIF header"),
        (damage(sif(), DESCRIPTORS - 8, -1), "SIF image .* has no file system"),
        (damage(sif(), FIRST, -1), "has a damaged SIF header"),
    ],
)
def test_a_damaged_image_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    with pytest.raises(ImageUnusable, match=complaint):
        check(path)


def test_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ImageUnusable, match=r"cannot read .*x.sif: No such file or directory\. Check its name$"):
        check(tmp_path / "x.sif")
    with pytest.raises(ImageUnusable, match=r"cannot read .*: Is a directory"):
        check(tmp_path)


def test_objects_and_partitions_in_the_order_of_mounting(tmp_path: Path) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif(data=b"base", more=[(SBOM, b"{}"), (PARTITION, b"layer")]))
    lowest, highest = partitions(path)
    assert (lowest.number, lowest.size, highest.number, highest.size) == (1, 4, 3, 5)
    assert path.read_bytes()[highest.offset :] == b"layer"
    assert object_bytes(path, SBOM) == b"{}"
    assert object_bytes(path, 0x4006) is None


def test_a_number_counts_and_not_the_place_in_the_file(tmp_path: Path) -> None:
    path, number = tmp_path / "x.sif", HEADER.size + 5
    content = sif(data=b"base", more=[(PARTITION, b"layer")])
    path.write_bytes(content[:number] + struct.pack("<I", 7) + content[number + 4 :])
    assert [entry.number for entry in partitions(path)] == [2, 7]


def test_an_image_that_is_removed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif(more=[(SBOM, b"{}")]))
    before = read(path)
    path.unlink()
    monkeypatch.setattr("ctrain_runtime.store.sif.read", lambda _: before)
    with pytest.raises(ImageUnusable, match=r"cannot read .*x\.sif: No such file or directory"):
        object_bytes(path, SBOM)

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ctrain_runtime import image
from ctrain_runtime.errors import ImageDamaged, ImageNotFound
from ctrain_runtime.store import open_store
from samples.images import sif, write_image, write_store

FIRST = "pytorch_24.12-hd-py3-r3.sif"


def damage(content: bytes, offset: int, *numbers: int) -> bytes:
    raw = struct.pack(f"<{len(numbers)}q", *numbers)
    return content[:offset] + raw + content[offset + len(raw) :]


@pytest.mark.parametrize(
    ("arch", "name"), [(b"02", "amd64"), (b"04", "arm64"), (b"06", "ppc64le"), (b"99", "an unknown architecture")]
)
def test_a_whole_image_and_its_architecture(tmp_path: Path, arch: bytes, name: str) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(sif(arch))
    assert image.check_sif(path) == name


DESCRIPTORS = 32 + 10 + 3 + 3 + 16 + 4 * 8  # where the header says at which offset they lie


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not a SIF image. Build one with"),
        (b"#!/bin/sh\n" * 100, "is not a SIF image. Build one with"),
        (sif(magic=b"SIF_TRAGIC"), "is not a SIF image. Build one with"),
        (sif()[:127], "is not a SIF image. Build one with"),
        (sif()[:128], r"is truncated: 128 bytes of 1306. Publish or copy it again"),
        (sif()[:-1], r"is truncated: 1305 bytes of 1306. Publish or copy it again"),
        (sif(kind=0x4003), "is a SIF without a file system in it"),
        (damage(sif(), DESCRIPTORS, -1), "can't be read: Invalid argument"),
        (damage(sif(), DESCRIPTORS, 1 << 62), "is truncated: 1306 bytes of"),
        (damage(sif(), DESCRIPTORS - 8, 1 << 62), "has a damaged SIF header"),
        (damage(sif(), DESCRIPTORS - 8, -1), "is a SIF without a file system in it"),
    ],
)
def test_a_damaged_image_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    with pytest.raises(ImageDamaged, match=complaint):
        image.check_sif(path)


def test_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ImageDamaged, match=r"x.sif can't be read: No such file or directory"):
        image.check_sif(tmp_path / "x.sif")
    with pytest.raises(ImageDamaged, match="can't be read: Is a directory"):
        image.check_sif(tmp_path)


def test_an_image_by_path(tmp_path: Path) -> None:
    path = write_image(tmp_path)
    link = tmp_path / "mine.sif"
    link.symlink_to(path.name)
    for reference in (str(path), f"./{path.name}", path.name, "mine.sif"):
        found = image.find((reference,), [], "x86_64")
        assert (found.path, found.manifest.version, found.channel) == (path, "24.12-hd-r3", "")


def test_an_image_that_ctrain_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "x.sif").write_bytes(sif())
    with pytest.raises(ImageDamaged, match=r"was not made by ctrain: no manifest x.json lies beside it"):
        image.find(("x.sif",), [], "x86_64")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ImageDamaged, match=r"x.json: key 'name' is missing$"):
        image.find(("x.sif",), [], "x86_64")


def test_a_path_where_nothing_lies() -> None:
    with pytest.raises(ImageNotFound, match=r"there is no image file /nowhere/x. ctrain images lists the published"):
        image.find(("/nowhere/x",), [], "x86_64")


def test_an_image_for_another_machine(tmp_path: Path) -> None:
    path = write_image(tmp_path, content=sif(b"04"))
    assert image.find((str(path),), [], "aarch64").path == path
    with pytest.raises(ImageDamaged, match=r"is for arm64, this machine is x86_64. Choose another image$"):
        image.find((str(path),), [], "x86_64")


def test_an_image_of_another_size_than_its_manifest_says(tmp_path: Path) -> None:
    path = write_image(tmp_path, size=7)
    with pytest.raises(ImageDamaged, match=r"has 1306 bytes, its manifest says 7. Publish or copy it again$"):
        image.find((str(path),), [], "x86_64")


@pytest.mark.parametrize(
    ("channels", "channel"), [({}, ""), ({"pytorch_prod": FIRST}, "prod"), ({"pytorch_dev": FIRST}, "dev")]
)
def test_an_image_in_a_store_and_its_channel(tmp_path: Path, channels: dict[str, str], channel: str) -> None:
    store = open_store(write_store(tmp_path / "store", {}, channels=channels))
    found = image.find(("pytorch",), [store], "x86_64")
    assert (found.path, found.channel) == (tmp_path / "store" / FIRST, channel)


def test_the_first_reference_that_exists(tmp_path: Path) -> None:
    store = open_store(write_store(tmp_path / "store", {"name": "b"}, {"name": "c"}))
    assert image.find(("a", "b", "c"), [store], "x86_64").manifest.name == "b"
    with pytest.raises(ImageNotFound, match="image 'a' is not in"):
        image.find(("a", "d"), [store], "x86_64")

"""Laws of digests by regions: known ones and computed ones are the same, however the bytes come; any change shows."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrain_builder.files.digests import RegionHasher, regions, regions_digest
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.store.manifest import Layer
from ctrain_runtime.store.sif import PARTITION
from samples.sample_images import sif

contents = st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images") / "image.sif"


def write(file: Path, parts: list[bytes]) -> list[Layer]:
    """An image of these partitions, and the layers that it is made of."""
    file.write_bytes(sif(data=parts[0], more=[(PARTITION, part) for part in parts[1:]]))
    return [Layer("x", "k", len(part), f"sha256:{hashlib.sha256(part).hexdigest()}") for part in parts]


@given(contents, st.integers(1, 300))
def test_known_digests_are_those_of_the_bytes(file: Path, parts: list[bytes], step: int) -> None:
    layers = write(file, parts)
    reading, content = RegionHasher(regions(file, layers)), file.read_bytes()
    for place in range(0, len(content), step):
        reading.update(content[place : place + step])
    assert reading.digest() == regions_digest(file, layers)


@given(contents, st.data())
def test_a_changed_byte_changes_the_digest(file: Path, parts: list[bytes], data: st.DataObject) -> None:
    layers = write(file, parts)
    found, content = regions(file, layers), bytearray(file.read_bytes())
    before = regions_digest(file, layers)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1
    reading = RegionHasher(found)
    reading.update(bytes(content))
    assert reading.digest() != before


@given(contents)
def test_a_flat_image_is_one_region(file: Path, parts: list[bytes]) -> None:
    layers = write(file, parts)
    write(file, [b"flat"])
    if len(layers) > 1:
        (region,) = regions(file, layers)
        assert (region.offset, region.size, region.digest) == (0, file.stat().st_size, "")
        reading = RegionHasher([region])
        reading.update(file.read_bytes())
        assert reading.digest() == regions_digest(file, layers)
        assert file_digest(file) == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"


def test_layers_of_another_image(file: Path) -> None:
    layers = write(file, [b"one", b"two"])
    write(file, [b"one", b"three"])
    with pytest.raises(ImageUnusable, match="does not consist of the layers in its manifest"):
        regions_digest(file, layers)

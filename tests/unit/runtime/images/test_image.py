from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.errors import ImageNotFound, ImageUnusable
from ctrain_runtime.images import image
from ctrain_runtime.store.manifest import Layer
from ctrain_runtime.store.store import open_store
from samples.sample_images import sif, write_image, write_store

FIRST = "pytorch_24.12-hd-py3-r3.sif"


def test_an_image_by_path(tmp_path: Path) -> None:
    path = write_image(tmp_path)
    link = tmp_path / "mine.sif"
    link.symlink_to(path.name)
    for reference in (str(path), f"./{path.name}", path.name, "mine.sif"):
        found = image.find((reference,), [], "x86_64")
        assert (found.path, found.manifest.version, found.channel) == (path, "24.12-hd-r3", "")


def test_an_image_that_ctrain_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "x.sif").write_bytes(sif())
    with pytest.raises(ImageUnusable, match=r"x.sif has no manifest: x.json not found in its directory"):
        image.find(("x.sif",), [], "x86_64")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ImageUnusable, match=r"x.json: key 'name' is missing$"):
        image.find(("x.sif",), [], "x86_64")


def test_a_path_where_nothing_lies() -> None:
    with pytest.raises(
        ImageNotFound, match=r"image file /nowhere/x.* not found. List published images with: ctrain images"
    ):
        image.find(("/nowhere/x",), [], "x86_64")


def test_an_image_for_another_machine(tmp_path: Path) -> None:
    path = write_image(tmp_path, content=sif(b"04"))
    assert image.find((str(path),), [], "aarch64").path == path
    with pytest.raises(ImageUnusable, match=r"is arm64, this machine is x86_64. Select another image$"):
        image.find((str(path),), [], "x86_64")


def test_an_image_of_another_size_than_its_manifest_says(tmp_path: Path) -> None:
    path = write_image(tmp_path, size=7)
    with pytest.raises(ImageUnusable, match=r"has 1306 bytes, its manifest records 7. Copy or publish it again$"):
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
    with pytest.raises(ImageNotFound, match=r"image 'a' not found in [^ ]*; neither is 'd'\. Available: b, c"):
        image.find(("a", "d"), [store], "x86_64")


def test_an_image_is_found_for_any_machine(tmp_path: Path) -> None:
    path = write_image(tmp_path, content=sif(b"04"))
    assert image.find_any_arch((str(path),), []).path == path


def test_the_flat_image_with_the_same_layers(tmp_path: Path) -> None:
    write_image(tmp_path, flat=True, release=1, layers=(Layer("pytorch-ngc", "other", 3), Layer("horovod", "k1", 2)))
    write_image(tmp_path, flat=True, release=2, name="tensorflow")
    layered = image.find_any_arch((str(write_image(tmp_path)),), [])
    assert image.find_flat_variant(layered) is None
    flat = write_image(tmp_path, flat=True, release=7)
    found = image.find_flat_variant(layered)
    assert found
    assert (found.path, found.manifest.version) == (flat, "24.12-hd-r7-flat")


@pytest.mark.parametrize("text", ["{", '{"schema": 99}'])
def test_a_flat_image_of_others_that_cannot_be_read_is_skipped(tmp_path: Path, text: str) -> None:
    (tmp_path / "pytorch_24.12-hd-py3-r1-flat.json").write_text(text)
    layered = image.find_any_arch((str(write_image(tmp_path)),), [])
    assert image.find_flat_variant(layered) is None

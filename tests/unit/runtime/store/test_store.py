from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import ConfigError, ImageNotFound, StoreError
from ctrain_runtime.store.manifest import CHECKSUM, SCHEMA, checksum, read_manifest
from ctrain_runtime.store.manifest import TestResult as Result
from ctrain_runtime.store.references import resolve
from ctrain_runtime.store.store import Store, open_store
from samples.plans import a_manifest
from samples.sample_images import write_image, write_manifest, write_store

OLD: dict[str, Any] = {"release": 1, "digest": "sha256:01", "published": "2026-01-01T00:00:00Z"}
NEW: dict[str, Any] = {"release": 2, "digest": "sha256:02", "published": "2026-02-01T00:00:00Z"}
CPU: dict[str, Any] = {"name": "pytorch-cpu", "release": 1, "digest": "sha256:03"}
CHANNELS = {
    "pytorch_prod": "pytorch_24.12-hd-py3-r1.sif",
    "pytorch_dev": "pytorch_24.12-hd-py3-r2.sif",
    "pytorch_24.12": "pytorch_24.12-hd-py3-r2.sif",
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(write_store(tmp_path / "store", NEW, OLD, CPU, channels=CHANNELS))


def test_names_of_a_version() -> None:
    manifest = a_manifest()
    assert (manifest.version, manifest.file_name) == ("24.12-hd-r3", "pytorch_24.12-hd-py3-r3.sif")


def test_images_by_name_then_oldest_first(store: Store) -> None:
    assert [(image.path.name, image.channels) for image in store.images()] == [
        ("pytorch_24.12-hd-py3-r1.sif", ("prod",)),
        ("pytorch_24.12-hd-py3-r2.sif", ("24.12", "dev")),
        ("pytorch-cpu_24.12-hd-py3-r1.sif", ()),
    ]


def test_an_image_without_its_manifest_does_not_count(store: Store) -> None:
    (store.root / "pytorch_24.12-hd-py3-r2.json").unlink()
    assert [image.manifest.release for image in store.images() if image.manifest.name == "pytorch"] == [1]


@pytest.mark.parametrize(
    ("reference", "digest"),
    [
        ("pytorch", "sha256:01"),  # channel prod
        ("pytorch:prod", "sha256:01"),
        ("pytorch:dev", "sha256:02"),
        ("pytorch:24.12", "sha256:02"),
        ("pytorch:24.12-hd-r2", "sha256:02"),
        ("pytorch@sha256:01", "sha256:01"),
        ("pytorch-cpu", "sha256:03"),  # no prod: the newest
    ],
)
def test_references(store: Store, reference: str, digest: str) -> None:
    assert resolve([store], reference).manifest.digest == digest


def test_without_a_channel_prod_the_newest(store: Store) -> None:
    (store.root / "channels/pytorch_prod.sif").unlink()
    assert resolve([store], "pytorch").manifest.release == 2


def test_the_first_store_that_has_it_wins(store: Store, tmp_path: Path) -> None:
    mine = open_store(write_store(tmp_path / "mine", {"digest": "sha256:mine"}))
    assert resolve([mine, store], "pytorch").manifest.digest == "sha256:mine"
    assert resolve([mine, store], "pytorch-cpu").manifest.digest == "sha256:03"


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        (
            "pytroch",
            r"image 'pytroch' not found in .*/store. Did you mean 'pytorch'\? Available: pytorch, pytorch-cpu$",
        ),
        ("tensorflow", r"/store. Available: pytorch, pytorch-cpu$"),
        ("pytroch:dev", r"Did you mean 'pytorch'\? Available: "),
        ("pytorch:prd", r"Did you mean 'pytorch:prod'\? Available: "),
        ("pytorch:24.12-hd-r7", r"Did you mean 'pytorch:24.12-hd-r2'\? Available: "),
        ("pytorch:beta", "/store. Available: pytorch-cpu:24.12-hd-r1, pytorch:24.12-hd-r1, pytorch:24.12-hd-r2$"),
        ("pytorch@sha256:99", "image 'pytorch@sha256:99' not found in"),
        ("pytorch-cpu:prod", "image 'pytorch-cpu:prod' not found in"),
        ("..:..", r"image '..:..' not found in"),
        ("", "image '' not found in"),
        ("pytorch:../pytorch-cpu_24.12-hd-py3-r1", "not found in"),
        ("*", "not found in"),
    ],
)
def test_what_is_not_there(store: Store, reference: str, complaint: str) -> None:
    with pytest.raises(ImageNotFound, match=complaint):
        resolve([store], reference)


def test_nowhere_to_look(tmp_path: Path) -> None:
    with pytest.raises(ImageNotFound, match=r"not found in any store \(none configured\). Pass --image \./FILE.sif"):
        resolve([], "pytorch")
    empty = open_store(write_store(tmp_path / "empty"))
    assert empty.images() == ()
    with pytest.raises(ImageNotFound, match="or publish an image: ctrain publish, ctrain store adopt"):
        resolve([empty], "pytorch")


def test_a_channel_reaches_only_images_of_its_store(store: Store) -> None:
    for name, target in {
        "pytorch_abs": "/etc/passwd",
        "pytorch_up": "../../secret.sif",
        "pytorch_gone": "x.sif",
    }.items():
        (store.root / "channels" / f"{name}.sif").symlink_to(target)
    for image in store.images():
        assert image.path.parent == store.root
        assert not {"abs", "up", "gone"} & set(image.channels)


def test_a_file_in_place_of_a_channel_is_none(store: Store) -> None:
    (store.root / "channels/pytorch_beta.sif").write_text("a copy, not a link")
    assert all("beta" not in image.channels for image in store.images())


@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        (None, r"store is not a store: ctrain-store.json not found. Create a store with"),
        ('{"layout": 2}', r"unsupported store layout 2 in .*/store \(supported: 1\). Upgrade ctrain$"),
        ("{", r"ctrain-store.json is damaged: layout number not found. Create a store with"),
        ("[]", "is damaged"),
        ("{}", "is damaged"),
        ("\ud800", "is damaged"),
    ],
)
def test_a_folder_that_is_no_store_of_ours(tmp_path: Path, marker: str, complaint: str) -> None:
    (tmp_path / "store").mkdir()
    if marker is not None:
        (tmp_path / "store/ctrain-store.json").write_bytes(marker.encode(errors="surrogatepass"))
    with pytest.raises(StoreError, match=complaint):
        open_store(tmp_path / "store")


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere does not exist"):
        open_store(tmp_path / "nowhere")


def test_a_marker_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "ctrain-store.json").mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*: Is a directory"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"name": "x"', "x.json is not a manifest: Expecting ',' delimiter"),
        ("[]", r"x.json is not a manifest: not a JSON object$"),
        ("{}", "x.json: key 'name' is missing"),
        ("\udcff", "x.json is not a manifest"),
    ],
)
def test_a_damaged_manifest(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=complaint):
        read_manifest(tmp_path / "x.json")


def test_a_manifest_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*x.json: No such file"):
        read_manifest(tmp_path / "x.json")


def test_a_manifest_of_a_newer_ctrain(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_manifest(path, a_manifest(schema=SCHEMA + 1))
    path.write_text(json.dumps({**json.loads(path.read_text()), "a_new_key": 1}))
    with pytest.raises(
        ConfigError,
        match=rf"unsupported manifest schema {SCHEMA + 1} in .* \(supported: 1 to {SCHEMA}\). Upgrade ctrain$",
    ):
        read_manifest(path)


def test_a_damaged_entry_hides_no_other(store: Store) -> None:
    damaged = store.root / "pytorch_24.12-hd-py3-r2.json"
    damaged.write_text("{")
    scan = store.scan()
    assert [image.manifest.digest for image in scan.images] == ["sha256:01", "sha256:03"]
    assert [error.message.partition(":")[0] for error in scan.damaged] == [f"{damaged} is not a manifest"]
    assert resolve([store], "pytorch").manifest.digest == "sha256:01"
    with pytest.raises(ImageNotFound, match=r"Available: .*; .*r2.json is not a manifest"):
        resolve([store], "pytorch:24.12-hd-r2")


def test_a_changed_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    path = write_image(tmp_path).with_suffix(".json")
    good = path.read_bytes()
    for place, byte in enumerate(good):
        if chr(byte).isspace():  # outside of strings it means nothing
            continue
        path.write_bytes(good[:place] + bytes([byte ^ 1]) + good[place + 1 :])
        with pytest.raises(ConfigError, match=r"x\.json|py3-r3\.json"):
            read_manifest(path)


def test_an_image_that_is_not_beside_its_manifest_does_not_count(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret.sif").write_bytes(b"")
    image = store.root / "pytorch_24.12-hd-py3-r2.sif"
    image.unlink()
    assert [str(error) for error in store.scan().damaged] == [f"{image} is missing or not a regular file"]
    image.symlink_to(tmp_path / "secret.sif")
    assert [str(error) for error in store.scan().damaged] == [f"{image} is missing or not a regular file"]


def test_a_manifest_under_another_name_is_damaged(store: Store) -> None:
    path = store.root / "pytorch_24.12-hd-py3-r2.json"
    path.rename(path.with_name("pytorch_24.12-hd-py3-r9.json"))
    assert [error.message for error in store.scan().damaged] == [
        f"{store.root}/pytorch_24.12-hd-py3-r9.json is the manifest of pytorch_24.12-hd-py3-r2.sif"
    ]


def test_a_manifest_of_an_older_ctrain(tmp_path: Path) -> None:
    """Schema 1: images in stores keep their manifests for ever."""
    data = dataclasses.asdict(a_manifest())
    for key in ("base", "flat", "requires"):
        del data[key]
    data["schema"] = 1
    data["layers"] = [{"definition": "pytorch-ngc", "key": "k0", "size": 3}]
    data["tests"] = [{"name": "imports", "passed": True, "seconds": "1.2"}]
    (tmp_path / "x.json").write_text(json.dumps(data))
    manifest = read_manifest(tmp_path / "x.json")
    assert (manifest.schema, manifest.flat, manifest.layers[0].digest, manifest.tested) == (SCHEMA, False, "", True)


def test_a_thin_image_of_an_earlier_version_is_refused_in_one_line(tmp_path: Path) -> None:
    """It would start without its base. Its neighbours are listed as ever, also those whose manifests have the key."""
    root = write_store(tmp_path / "store", OLD, NEW)
    for release, below in ((1, {"name": "base_1.sif", "digest": "sha256:0b", "size": 4}), (2, None)):
        path = root / f"pytorch_24.12-hd-py3-r{release}.json"
        data = {**json.loads(path.read_text()), "below": below}
        del data[CHECKSUM]
        path.write_text(json.dumps({**data, CHECKSUM: checksum(data)}))
    scan = Store(root).scan()
    assert [image.manifest.release for image in scan.images] == [2]
    (refused,) = scan.damaged
    assert re.match(r"\S+-r1.json is of a thin image, .* no longer supported. Publish the image again", str(refused))
    with pytest.raises(ImageNotFound, match="is of a thin image"):
        resolve([Store(root)], "pytorch:24.12-hd-r1")


@pytest.mark.parametrize(
    ("tests", "tested"),
    [
        ((), False),
        ((Result("a", True, "1"), Result("b", True, "1")), True),
        ((Result("a", True, "1"), Result("b", False, "1")), False),
        ((Result("a", True, "1"), Result("b", False, "0", "no GPU")), True),
        ((Result("b", False, "0", "no GPU"),), False),
    ],
)
def test_an_image_is_tested_if_tests_were_run_and_none_failed(tests: tuple[Result, ...], tested: bool) -> None:
    assert a_manifest(tests=tests).tested is tested


def test_a_flat_image_is_only_what_is_asked_for(tmp_path: Path) -> None:
    flat = {**NEW, "flat": True, "digest": "sha256:flat", "published": "2026-03-01T00:00:00Z"}
    store = open_store(write_store(tmp_path / "store", NEW, flat))
    assert resolve([store], "pytorch").manifest.digest == "sha256:02"
    assert resolve([store], "pytorch:24.12-hd-r2-flat").path.name == "pytorch_24.12-hd-py3-r2-flat.sif"


def test_a_flat_image_that_is_the_only_one(tmp_path: Path) -> None:
    store = open_store(write_store(tmp_path / "store", {**NEW, "flat": True}))
    assert resolve([store], "pytorch").manifest.flat

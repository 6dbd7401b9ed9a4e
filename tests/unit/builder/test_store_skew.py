"""Clients of the previous schema and of the next use the same store: nobody's versions are harmed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.errors import StoreError
from samples.shop import Shop

LONG_AGO = 400 * 86400


def previous_schema(path: Path) -> None:
    """As ctrain wrote manifests two schemas ago: without a checksum, and with other spacing."""
    data = {**json.loads(path.read_text()), "schema": 2}
    del data["checksum"]
    path.chmod(0o644)
    path.write_text(json.dumps(data))


def age(path: Path) -> None:
    then = time.time() - LONG_AGO
    os.utime(path, (then, then))


@pytest.mark.parametrize("kind", ["newer", "damaged", "unreadable"])
@pytest.mark.parametrize("folder", ["", "retired", "quarantine"])
def test_gc_keeps_the_image_of_any_manifest(
    shop: Shop, folder: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that it cannot read, wherever it is, however long ago."""
    if folder:
        (shop.root / folder).mkdir(exist_ok=True)
        shop.file(1, "json").rename(shop.file(1, "json", folder))
    path = shop.file(1, "json", folder)
    if kind == "newer":
        shop.next_schema(1, folder)
    else:
        path.chmod(0o644)
        path.write_text("{")
    age(path)
    age(shop.file(1))
    if kind == "unreadable":
        read = Path.read_bytes

        def fails(self: Path) -> bytes:
            if self == path:
                raise PermissionError(13, "Permission denied", str(self))
            return read(self)

        monkeypatch.setattr(Path, "read_bytes", fails)
    assert shop("gc", "--grace", "0", "--yes") == "nothing to remove\n"
    assert shop.file(1).read_text() == "one"
    shop.publish("four")
    assert shop.file(4).read_text() == "four"  # no number is given again


def test_gc_keeps_images_when_a_directory_cannot_be_listed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be listed is not empty."""
    shop("retire", "small:1.0-s-r1", "--yes")
    (shop.root / ".small_1.0-s-py3-r1.json.part").write_text("{")
    listed = Path.iterdir

    def fails(path: Path) -> object:
        if path.name == "retired":
            raise OSError(116, "Stale file handle", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", fails)
    assert "retired: Stale file handle" in shop("gc", "--grace", "0", "--yes", code=76)
    assert shop.file(1).exists()


@pytest.mark.parametrize("directory", ["retired", "quarantine"])
def test_no_number_is_given_again_when_a_directory_cannot_be_listed(
    shop: Shop, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def fails(path: Path) -> object:
        if path.name == directory:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", fails)
    with pytest.raises(StoreError, match=f"cannot list .*/{directory}: Permission denied"):
        shop.publish("four")
    assert set(shop.versions) == {1, 2, 3}


def test_gc_removes_nothing_when_leases_cannot_be_listed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    listed = Path.iterdir

    def fails(path: Path) -> object:
        if path.name == "in-use":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", fails)
    assert "Permission denied" in shop("gc", "--grace", "0", "--yes", code=None)
    assert shop.file(1).exists()


def test_a_version_of_the_next_schema_is_left_alone(shop: Shop, tmp_path: Path) -> None:
    """It is told, and every action either works on the others or says: upgrade."""
    path = shop.next_schema(3)
    before = path.read_bytes()
    assert "unsupported manifest schema 5" in shop("list", stream="err")
    assert "schema 5" in shop(
        "verify", "--quarantine", "--yes", "--force", "--cache", str(tmp_path / "c"), code=76, stream="out"
    )
    assert "schema 5" in shop("retire", "small:1.0-s-r3", "--yes", code=68)
    assert "schema 5" in shop("withdraw", "small:1.0-s-r3", "--why", "x", "--yes", code=68)
    assert "schema 5" in shop("promote", "small", "1.0-s-r3", "prod", code=68)
    shop("gc", "--grace", "0", "--yes")
    shop.publish("four", "dev")
    assert (path.read_bytes(), shop.file(3).read_text()) == (before, "three")
    assert shop.versions == {1: (), 2: ("prod",), 4: ("dev",)}


@pytest.mark.parametrize("kind", ["previous", "next"])
def test_a_manifest_is_retired_and_restored_byte_by_byte(shop: Shop, kind: str) -> None:
    """So the client that wrote it reads it as before."""
    if kind == "previous":
        previous_schema(shop.file(1, "json"))
        shop("retire", "small:1.0-s-r1", "--yes")
    before: Optional[bytes] = None
    if kind == "next":
        shop("retire", "small:1.0-s-r1", "--yes")
        before = shop.next_schema(1, "retired").read_bytes()
        assert "unsupported manifest schema 5" in shop("restore", "small:1.0-s-r1", code=66)
        assert shop.file(1, "json", "retired").read_bytes() == before
    else:
        before = shop.file(1, "json", "retired").read_bytes()
        shop("restore", "small:1.0-s-r1")
        assert shop.file(1, "json").read_bytes() == before
        assert json.loads(before)["schema"] == 2


def test_a_rollback_knows_what_a_newer_ctrain_has_logged(shop: Shop) -> None:
    """prod was 1, then 2, then by a newer ctrain 3."""
    shop("promote", "small", "1.0-s-r3", "prod")
    log = shop.root / "ctrain-store.log"
    *lines, last = log.read_text().splitlines()
    log.write_text("\n".join((*lines, json.dumps({**json.loads(last), "colour": "red"}))) + "\n")
    assert "promote" in shop("log").splitlines()[-1]
    shop("rollback", "small", "prod")
    assert shop.versions[2] == ("prod",)


def test_versions_of_the_previous_schema_are_verified(shop: Shop, tmp_path: Path) -> None:
    previous_schema(shop.file(1, "json"))
    said = shop("verify", "--cache", str(tmp_path / "cache"))
    assert said.startswith("3 versions whole")
    shop.file(1).chmod(0o644)
    shop.file(1).write_text("bad")
    assert "digest mismatch" in shop("verify", "--cache", str(tmp_path / "cache"), code=69, stream="out")

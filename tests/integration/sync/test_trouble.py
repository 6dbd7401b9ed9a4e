"""`ctrain store sync` where the network, the disk or the registry fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_builder.registry import artifacts
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_runtime.registry.client import Reference, RegistryClient
from ctrain_runtime.store.store import Store, open_store
from samples.registry import Answer, Front, Request
from samples.stores import Images, disk
from samples.syncing import CHUNK, MIB, R1, R2, Sync, moved, place, same, spoil


def cut(answer: Answer) -> None:
    answer.cut = True


def flip(answer: Answer) -> None:
    answer.body = answer.body[:5_000_000] + b"flipped" + answer.body[5_000_007:]


def test_a_download_that_is_cut_goes_on(pushed: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.fault = spoil("GET", "/blobs/", cut, times=3)
    sync(place(before), tmp_path / "other")
    same(pushed, tmp_path / "other", R1, R2)
    ranges = [one.headers["range"] for one in before.requests if "range" in one.headers]
    assert len(ranges) == 3


def test_a_registry_without_ranges(pushed: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.fault = spoil("GET", "/blobs/", cut)
    before.stand = lambda request: request.headers.pop("range", None) and None
    sync(place(before), tmp_path / "other")
    same(pushed, tmp_path / "other", R1, R2)


@pytest.mark.usefixtures("pushed")
def test_a_download_that_always_ends_early(before: Front, tmp_path: Path, sync: Sync) -> None:
    other = tmp_path / "other"
    before.fault = spoil("GET", "/blobs/", lambda answer: setattr(answer, "body", b""), times=100)
    said = sync(place(before), other, "small:prod", code=79)
    assert said.startswith(
        f"ctrain: {before.host} sends less of {before.host}/lab/images/small:1.0-s-r1 than it should"
    )
    assert open_store(other).images() == ()


@pytest.mark.parametrize("times", [1, 2])
def test_bytes_that_were_changed_on_the_way(
    times: int, pushed: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    other = tmp_path / "other"
    before.fault = spoil("GET", "/blobs/", flip, times)
    said = sync(place(before), other, "small:prod", code=69)
    assert "digest mismatch: the copy of small_1.0-s-py3-r1.sif is sha256:" in said
    assert [path.name for path in other.iterdir()] == ["ctrain-store.json"]
    before.fault = lambda _, __: None
    sync(place(before), other)
    same(pushed, other, R1, R2)


def test_a_copy_that_was_damaged_while_it_was_left(pushed: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    other, manifest = tmp_path / "other", pushed.images()[0].manifest
    sync(place(before), other, "small:dev")
    (other / f".{manifest.file_name}.{manifest.digest[-12:]}.part").write_bytes(os.urandom(2 * MIB))
    sync(place(before), other)
    same(pushed, other, R1, R2)


def test_a_copy_goes_to_no_file_of_others(store: Store, tmp_path: Path, sync: Sync) -> None:
    other, manifest = tmp_path / "other", store.images()[0].manifest
    sync(store.root, other, "small:dev")
    (tmp_path / "precious").write_text("keep")
    (other / f".{manifest.file_name}.{manifest.digest[-12:]}.part").symlink_to(tmp_path / "precious")
    sync(store.root, other)
    same(store, other, R1, R2)
    assert (tmp_path / "precious").read_text() == "keep"


@pytest.mark.usefixtures("pushed")
def test_a_registry_that_lies(before: Front, tmp_path: Path, sync: Sync) -> None:
    usual = spoil("GET", "/manifests/1.0-s-r1", lambda answer: answer.headers.update({"Docker-Content-Digest": "x"}))
    before.fault = usual
    assert "digest mismatch" in sync(place(before), tmp_path / "other", code=79)

    def other_version(request: Request) -> Optional[Answer]:
        request.path = request.path.replace("1.0-s-r1", "1.0-s-r2")
        return None

    before.stand = other_version
    said = sync(place(before), tmp_path / "other", code=79)
    assert f"{before.host}/lab/images/small:1.0-s-r1 holds small 1.0-s-r2" in said
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["ctrain-store.json"]


@pytest.mark.parametrize(
    "facts",
    [{"name": "../../etc"}, {"tag": "../x"}, {"stack": "s/../../x"}, {"size": 3}, {"release": -1}],
)
def test_a_manifest_that_leads_out_of_the_store(
    facts: dict[str, Any], store: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    """What an attacker can push: everything fits together, but for the names in it."""
    sync(store.root, place(before))
    client, manifest = RegistryClient(), store.images()[0].manifest
    evil = replace(manifest, **facts)
    artifacts.tag(client, Reference(before.host, "lab/images/small", "prod", ""), evil)
    foreign = not {"size", "release"} & facts.keys()
    said = sync(place(before), tmp_path / "other", "small:prod", code=68 if foreign else 79)
    assert "small:prod" in said
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["ctrain-store.json"]


def test_a_manifest_that_is_damaged_or_newer(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    """It is left out, and the exit code says that something was."""
    sync(store.root, place(before))
    newer = replace(store.images()[0].manifest, schema=99)
    artifacts.tag(RegistryClient(), Reference(before.host, "lab/images/small", "prod", ""), newer)
    said = sync(place(before), tmp_path / "other", code=69)
    assert said.startswith(f"ctrain: left out: unsupported manifest schema 99 in {before.host}/lab/images/small:prod")
    same(store, tmp_path / "other", R1, R2)


def dropped(before: Front, times: int) -> Callable[[Request], Optional[Answer]]:
    """The connection ends while the third part of an upload is sent, so many times."""
    left = [True] * times

    def stand(request: Request) -> Optional[Answer]:
        if moved(before) > 2 * MIB and request.method == "PATCH" and left:
            left.pop()
            raise ConnectionResetError
        return None

    return stand


def test_an_upload_that_is_cut_goes_on(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.stand = dropped(before, 2)
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size + 2 * CHUNK
    before.stand = lambda _: None
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1)


def test_an_upload_that_is_always_cut(store: Store, before: Front, sync: Sync) -> None:
    before.stand = dropped(before, 100)
    said = sync(store.root, place(before), code=79)
    assert said.startswith(f"ctrain: {before.host} cannot be reached: ")
    assert said.endswith("Retry later: it resumes\n")
    before.stand = lambda _: None
    before.requests.clear()
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size - 2 * CHUNK


def test_an_upload_that_the_registry_has_forgotten(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.stand = dropped(before, 100)
    sync(store.root, place(before), "small:prod", code=79)
    before.requests.clear()
    before.stand = lambda request: (
        Answer(404, {}, b"{}") if request.method == "GET" and "/uploads/" in request.path else None
    )
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size
    before.stand = lambda _: None
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1)


def test_a_blob_that_is_there_is_not_sent_again(store: Store, before: Front, sync: Sync) -> None:
    before.fault = spoil("PUT", "/manifests/", lambda answer: setattr(answer, "status", 400))
    sync(store.root, place(before), "small:prod", code=79)
    before.requests.clear()
    sync(store.root, place(before), "small:prod")
    assert moved(before) == 0


@pytest.mark.parametrize("path", ["/uploads/", "/manifests/"])
def test_a_registry_that_says_it_has_something_else(path: str, store: Store, before: Front, sync: Sync) -> None:
    lie = {"Docker-Content-Digest": "sha256:0"}
    before.fault = spoil("PUT", path, lambda answer: answer.headers.update(lie))
    assert "says it has sha256:0 now" in sync(store.root, place(before), code=79)


def test_another_who_was_quicker(store: Store, before: Front, images: Images, tmp_path: Path, sync: Sync) -> None:
    """He gave the same version to another image while ours was sent."""
    other = images.new()
    publish(other.path, other.manifest, tmp_path / "other")
    sync(tmp_path / "other", place(before))
    before.fault = spoil("HEAD", "/manifests/", lambda answer: setattr(answer, "status", 404))
    assert "has a different small 1.0-s-r1" in sync(store.root, place(before), "small:prod", code=76)
    init_store(tmp_path / "again")
    sync(place(before), tmp_path / "again")
    same(open_store(tmp_path / "other"), tmp_path / "again", R1)


def test_a_registry_that_does_not_list_its_repositories(
    pushed: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    before.stand = lambda request: Answer(404, {}, b"{}") if "_catalog" in request.path else None
    said = sync(place(before), tmp_path / "other", code=79)
    assert said == f"ctrain: {before.host} does not list its repositories. Name the images\n"
    sync(place(before), tmp_path / "other", "small")
    same(pushed, tmp_path / "other", R1, R2)


def test_a_full_disk(pushed: Store, before: Front, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk(tmp_path, "ext4", 16) as mounted:
        other = mounted / "other"
        init_store(other)
        subprocess.run(["fallocate", "-l", "6M", str(mounted / "filler")], check=True)
        assert "free, the image needs 8" in sync(place(before), other, "small:prod", code=75)
        much = shutil.disk_usage("/")
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "disk_usage", lambda _: much)  # it becomes full in the middle
            assert f"the disk of store {other} became full" in sync(place(before), other, "small:prod", code=75)
        assert open_store(other).images() == ()
        (mounted / "filler").unlink()
        before.requests.clear()
        sync(place(before), other, "small:prod")
        assert [one for one in before.requests if "range" in one.headers]  # it went on where it was
        same(pushed, other, R1)

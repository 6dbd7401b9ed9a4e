"""What `ctrain store sync` brings, and what it leaves as it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ctrain_builder.store import lifecycle
from ctrain_builder.store import verify as checks
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_builder.store.sign import Signer
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.store.store import Store, open_store
from samples import registry as samples
from samples.stores import Image, Images
from samples.syncing import R1, R2, Sync, channels, place, same


def test_from_a_store_to_a_registry_to_another_store(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    other = tmp_path / "other"
    assert "2 versions copied" in sync(store.root, place(real), "--channels")
    assert "0 versions copied (0 B), 2 there already" in sync(store.root, place(real), "--channels")
    said = json.loads(sync(place(real), other, "--channels", "--json"))
    assert said["copied"] == ["small:1.0-s-r1", "small:1.0-s-r2"]
    assert said["channels"][0] == {"name": "small", "channel": "prod", "before": "", "version": "1.0-s-r1"}
    same(store, other, R1, R2)
    assert channels(other) == {"1.0-s-r1": ("prod",), "1.0-s-r2": ("dev",)}
    lines = [json.loads(line) for line in (other / "ctrain-store.log").read_text().splitlines()]
    assert {(line["action"], line["why"]) for line in lines} == {("sync", f"from {place(real)}")}


def test_the_engine_pulls_what_was_pushed(store: Store, real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    sync(store.root, place(real), "--channels")
    for tag, stem in (("1.0-s-r2", R2), ("prod", R1)):
        pulled = tmp_path / f"{tag}.sif"
        argv = ["apptainer", "--quiet", "pull", "--no-https", str(pulled), f"{place(real)}/small:{tag}"]
        subprocess.run(argv, check=True)
        assert pulled.read_bytes() == (store.root / f"{stem}.sif").read_bytes()


def test_what_the_engine_pushed_is_not_from_a_store(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    image = str(store.root / f"{R1}.sif")
    argv = ["apptainer", "--quiet", "push", "--allow-unsigned", "--no-https", image, f"{place(real)}/small:latest"]
    subprocess.run(argv, check=True)
    said = sync(place(real), tmp_path / "other", "small:latest", code=68)
    assert "Available: none of that name; " in said
    assert "small:latest is not from a ctrain store: it has no manifest of ctrain" in said
    sync(store.root, place(real))
    sync(place(real), tmp_path / "other")  # leaves it out, and says so
    same(store, tmp_path / "other", R1, R2)
    subprocess.run([*argv[:-1], f"{place(real)}/small:prod"], check=True)
    assert "small:prod is not from a ctrain store" in sync(store.root, place(real), "--channels", code=79)


def test_one_version_one_channel_and_a_look_before(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    assert "would have copied small 1.0-s-r1" in sync(store.root, place(real), "small:prod", "--dry-run")
    assert "has no repository" in sync(place(real), tmp_path / "other", "small", code=79)
    sync(store.root, place(real), "small:prod", "--channels")
    sync(place(real), tmp_path / "other", "--channels")
    assert channels(tmp_path / "other") == {"1.0-s-r1": ("prod",)}
    sync(store.root, tmp_path / "other", "small:1.0-s-r2", "--channels")
    assert channels(tmp_path / "other") == {"1.0-s-r1": ("prod",), "1.0-s-r2": ("dev",)}
    same(store, tmp_path / "other", R1, R2)
    said = sync(store.root, tmp_path / "other", "small:1.0-s-r7", code=68)
    assert "image 'small:1.0-s-r7' is not in" in said
    assert "Available: small:1.0-s-r1, small:1.0-s-r2" in said


def test_from_registry_to_registry(store: Store, real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    sync(store.root, place(real))
    sync(place(real), f"oras://{real.host}/copy")
    sync(f"oras://{real.host}/copy", tmp_path / "other")
    same(store, tmp_path / "other", R1, R2)


def test_a_signed_image_stays_valid(pair: list[Image], real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)
    subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)], check=True)
    key.chmod(0o600)
    init_store(tmp_path / "store")
    publish(pair[0].path, pair[0].manifest, tmp_path / "store", "prod", signer=Signer(find_engine(), str(key)))
    sync(tmp_path / "store", place(real))
    sync(place(real), tmp_path / "other")
    (found,) = open_store(tmp_path / "other").images()
    assert found.manifest.signed
    subprocess.run(["apptainer", "verify", "--key", str(public), str(found.path)], check=True)


@pytest.mark.parametrize("kind", ["folder", "registry"])
def test_a_version_never_changes(
    kind: str, store: Store, images: Images, request: pytest.FixtureRequest, tmp_path: Path, sync: Sync
) -> None:
    target = str(tmp_path / "other") if kind == "folder" else place(request.getfixturevalue("real"))
    sync(store.root, target, "small:1.0-s-r1")
    third = images.new()
    init_store(tmp_path / "third")
    publish(third.path, third.manifest, tmp_path / "third")
    digest = open_store(tmp_path / "third").images()[0].manifest.digest
    said = sync(tmp_path / "third", target, code=76)
    assert f"{target} has a different small 1.0-s-r1: sha256:" in said
    assert digest[:19] in said
    init_store(tmp_path / "again")
    sync(target, tmp_path / "again")
    same(store, tmp_path / "again", R1)


def test_retired_versions_stay_retired(store: Store, real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    sync(store.root, place(real), "--channels")
    with lock_store(store.root) as writer:
        (store.root / "channels/small_prod.sif").unlink()
        lifecycle.retire(writer, ["small:1.0-s-r1"])
        lifecycle.collect(writer, 0)
    said = sync(place(real), store.root, "--channels")
    assert f"small 1.0-s-r1 stays retired in {store.root}" in said
    assert channels(store.root) == {"1.0-s-r2": ("dev",)}
    assert "1 version copied" in sync(store.root, tmp_path / "other")


def test_what_was_put_aside_as_damaged_comes_again(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    sync(store.root, place(real))
    sync(place(real), tmp_path / "other")
    other = open_store(tmp_path / "other")
    (other.root / f"{R1}.sif").chmod(0o644)
    with (other.root / f"{R1}.sif").open("r+b") as file:
        file.write(b"#!damaged")
    (bad,) = [
        one for one in checks.verify(checks.subjects(other), checks.VerifyProgress(tmp_path / "n"), 1) if one.problem
    ]
    with lock_store(other.root) as writer:
        checks.quarantine(writer, bad)
    assert "1 version copied" in sync(place(real), other.root)
    same(store, other.root, R1, R2)


def test_a_damaged_version_here_does_not_go_there(store: Store, real: samples.Registry, sync: Sync) -> None:
    path = store.root / f"{R1}.sif"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"flipped")
    assert "small 1.0-s-r1 is damaged: it has" in sync(store.root, place(real), "small:1.0-s-r1", code=69)
    assert "has no repository" in sync(place(real), store.root, "small", code=79)

"""`ctrain store sync` between folders. The images are a few bytes long; registries are in tests/integration."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store import channels, lifecycle, log
from ctrain_builder.store.endpoints import RegistryEndpoint
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import UsageError
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.store import open_store
from samples.crashes import run_until

Sync = Callable[..., str]


@pytest.fixture
def fill(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> Callable[..., Path]:
    def make(name: str, **contents: str) -> Path:
        """The store `name` with a version for each of channel=content."""
        for channel, content in contents.items():
            (tmp_path / "image").write_text(content)
            digest = f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
            manifest = Manifest(**{**vars(make_manifest(digest)), "size": len(content)})
            new_store(tmp_path / name)
            publish(tmp_path / "image", manifest, tmp_path / name, channel)
        return tmp_path / name

    return make


@pytest.fixture
def sync(capsys: pytest.CaptureFixture[str]) -> Sync:
    def run(*argv: object, code: int = 0) -> str:
        """What it prints; in case of an error, that."""
        assert main(BUILD_VERBS, ["store", "sync", *map(str, argv)]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def new_store(root: Path) -> Path:
    init_store(root)
    return root


def state(root: Path) -> dict[str, tuple[str, ...]]:
    return {image.manifest.version: image.channels for image in open_store(root).images()}


def test_all_versions_and_their_channels(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one", dev="two"), new_store(tmp_path / "target")
    assert sync(source, target, "--dry-run", "--channels") == (
        "would have copied small 1.0-s-r1 (3 B)\nwould have copied small 1.0-s-r2 (3 B)\n"
        "channel prod of small would be 1.0-s-r1 (it is new)\nchannel dev of small would be 1.0-s-r2 (it is new)\n"
        "2 versions to copy (6 B), 0 there already\n"
    )
    assert [path.name for path in target.iterdir()] == ["ctrain-store.json"]
    assert sync(source, target).endswith("2 versions copied (6 B), 0 there already\n")
    assert state(target) == {"1.0-s-r1": (), "1.0-s-r2": ()}
    sync(source, target, "--channels")
    assert state(target) == {"1.0-s-r1": ("prod",), "1.0-s-r2": ("dev",)}
    for file in source.glob("small*"):
        assert (target / file.name).read_bytes() == file.read_bytes()
    entries = list(log.read(target))
    assert {(entry.action, entry.why) for entry in entries} == {(log.SYNC, f"from {source}")}
    assert [entry.channel for entry in entries] == ["", "", "prod", "dev"]


def test_a_channel_that_came_can_be_rolled_back(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    sync(source, target, "--channels")
    fill("source", prod="two")
    said = sync(source, target, "--channels")
    assert "channel prod of small is 1.0-s-r2 (it was 1.0-s-r1)" in said
    with lock_store(target) as writer:
        channels.point(writer, "prod", channels.earlier_version(writer.store, "small", "prod"), log.ROLLBACK)
    assert state(target) == {"1.0-s-r1": ("prod",), "1.0-s-r2": ()}


def test_another_image_under_the_same_version(fill: Callable[..., Path], sync: Sync) -> None:
    source, target = fill("source", prod="one", dev="two"), fill("target", prod="other")
    before = sorted(target.iterdir())
    said = sync(source, target, code=76)
    digests = [hashlib.sha256(text).hexdigest()[:12] for text in (b"other", b"one")]
    assert said.startswith(
        f"ctrain: {target} has a different small 1.0-s-r1: sha256:{digests[0]}, "
        f"not sha256:{digests[1]}. A version never"
    )
    assert sorted(target.iterdir()) == before  # small 1.0-s-r2 has not come either
    assert sync(source, target, "small:dev").startswith("copied small 1.0-s-r2")


def test_a_retired_version_is_told_and_its_channel_left_alone(
    fill: Callable[..., Path], sync: Sync, tmp_path: Path
) -> None:
    source, target = fill("source", prod="one", dev="two"), new_store(tmp_path / "target")
    sync(source, target)
    with lock_store(target) as writer:
        lifecycle.retire(writer, ["small:1.0-s-r1"])
    said = json.loads(sync(source, target, "--channels", "--json"))
    assert said["retired"] == ["small:1.0-s-r1"]
    assert said["present"] == ["small:1.0-s-r2"]
    assert state(target) == {"1.0-s-r2": ("dev",)}


def test_what_is_damaged_is_told_and_left_out(
    fill: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = fill("source", prod="one", dev="two"), new_store(tmp_path / "target")
    manifest = source / "small_1.0-s-py3-r1.json"
    manifest.chmod(0o644)
    manifest.write_text(manifest.read_text().replace("amd64", "arm64"))
    assert main(BUILD_VERBS, ["store", "sync", str(source), str(target)]) == 69
    said = capsys.readouterr()
    assert said.err.startswith(f"ctrain: left out: checksum mismatch: {manifest} was modified")
    assert said.out.endswith("1 version copied (3 B), 0 there already\n")
    assert state(target) == {"1.0-s-r2": ()}


def test_what_is_damaged_there_is_not_replaced(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    sync(source, target)
    manifest = target / "small_1.0-s-py3-r1.json"
    manifest.chmod(0o644)
    manifest.write_text("{}")
    assert f"{manifest} is damaged, or of a newer ctrain. See: ctrain doctor" in sync(source, target, code=76)
    assert manifest.read_text() == "{}"


def test_a_version_in_quarantine_comes_again_as_it_was(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    sync(source, target)
    (target / "quarantine").mkdir()
    for file in target.glob("small*"):
        file.rename(target / "quarantine" / file.name)
    assert "has a different small 1.0-s-r1" in sync(fill("other", prod="other"), target, code=76)
    assert sync(source, target).startswith("copied small 1.0-s-r1")


def test_what_is_not_there(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    said = sync(source, target, "small:dev", code=68)
    assert said == f"ctrain: image 'small:dev' is not in {source}. Available: small:1.0-s-r1\n"
    assert "Available: none of that name" in sync(source, target, "smal", code=68)
    assert "does not exist" in sync(tmp_path / "nothing", target, code=76)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").write_text("x")
    assert "is not a store" in sync(source, tmp_path / "full", code=76)


def test_a_published_file_that_is_damaged_stays_behind(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    image = source / "small_1.0-s-py3-r1.sif"
    image.chmod(0o644)
    image.write_text("eno")
    assert "digest mismatch: the copy of small_1.0-s-py3-r1.sif is" in sync(source, target, code=69)
    assert [path.name for path in target.iterdir()] == ["ctrain-store.json"]


@pytest.mark.parametrize(
    "where",
    ["", "x", "lab/images", "h.example/Lab", "h.example/a:tag", "h.example/../x", "h.example//x", "a b.example/x"],
)
def test_no_place_in_a_registry(where: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a path in a registry\. Write it as oras://HOST\[:PORT\]/PATH$"):
        RegistryEndpoint(where, RegistryClient({}), tmp_path)


@pytest.mark.parametrize("where", ["h.example", "h.example/a/b", "h.example:5000/a/", "localhost/x", "docker.io/lab"])
def test_a_place_in_a_registry(where: str, tmp_path: Path) -> None:
    assert str(RegistryEndpoint(where, RegistryClient({}), tmp_path)) == f"oras://{where.rstrip('/')}"


def test_a_foreign_image_is_not_replaced(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    image = target / "small_1.0-s-py3-r1.sif"
    image.write_text("foreign")
    assert f"{image} exists, but has no manifest. Check what it is" in sync(source, target, code=76)
    assert image.read_text() == "foreign"


@pytest.mark.parametrize("late", [False, True])
def test_a_crash_at_any_step_gives_no_foreign_image_away(
    fill: Callable[..., Path], sync: Sync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    source, target = fill("source", prod="one"), tmp_path / "target"
    image = target / "small_1.0-s-py3-r1.sif"
    for number in itertools.count():
        shutil.rmtree(target, ignore_errors=True)
        new_store(target)
        if not late:
            image.write_text("foreign")
        finished = run_until(number, lambda: sync(source, target, code=0 if late else 76), monkeypatch)
        if not image.exists():
            image.write_text("foreign")
        is_foreign = image.read_text() == "foreign"
        again = sync(source, target, code=76 if is_foreign else 0)
        assert image.read_text() == ("foreign" if is_foreign else "one"), again
        assert len(state(target)) == 1 - is_foreign
        if finished:
            break


def test_what_an_interrupted_sync_has_left_is_replaced(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    (target / "small_1.0-s-py3-r1.sif").write_text("on")
    (target / ".small_1.0-s-py3-r1.json.part").write_text("{")
    assert sync(source, target).startswith("copied small 1.0-s-r1")
    assert (target / "small_1.0-s-py3-r1.sif").read_text() == "one"
    assert not list(target.glob(".*.part"))


@pytest.mark.parametrize("text", ["{", '{"schema": 99}'])
def test_a_retired_version_whose_manifest_cannot_be_read_does_not_come_again(
    fill: Callable[..., Path], sync: Sync, tmp_path: Path, text: str
) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    (target / "retired").mkdir()
    manifest = target / "retired/small_1.0-s-py3-r1.json"
    manifest.write_text(text)
    assert f"{manifest} is damaged, or of a newer ctrain" in sync(source, target, code=76)
    assert state(target) == {}


def test_a_channel_called_like_a_version_does_not_come(fill: Callable[..., Path], sync: Sync, tmp_path: Path) -> None:
    source, target = fill("source", prod="one"), new_store(tmp_path / "target")
    (source / "channels/small_1.0-s-r9.sif").symlink_to("../small_1.0-s-py3-r1.sif")
    assert "'1.0-s-r9' looks like a version" in sync(source, target, "--channels", code=64)
    assert "1.0-s-r9" not in state(target)["1.0-s-r1"]


def damage(source: Path, target: Path, how: str) -> str:
    """Make version r1 one that cannot be copied; the error."""
    if how == "bytes":
        (source / "small_1.0-s-py3-r1.sif").chmod(0o644)
        (source / "small_1.0-s-py3-r1.sif").write_text("eno")
        return "digest mismatch: the copy of small_1.0-s-py3-r1.sif is"
    if how == "foreign":
        (target / "small_1.0-s-py3-r1.sif").write_text("foreign")
        return f"{target / 'small_1.0-s-py3-r1.sif'} exists, but has no manifest"
    (target / "small_1.0-s-py3-r1.json").write_text("{}")
    return f"{target / 'small_1.0-s-py3-r1.json'} is damaged, or of a newer ctrain"


@pytest.mark.parametrize(("how", "code"), [("bytes", 69), ("foreign", 76), ("manifest", 76)])
def test_a_bad_version_does_not_keep_the_others_back(
    fill: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, code: int
) -> None:
    source, target = fill("source", prod="one", dev="two"), new_store(tmp_path / "target")
    complaint = damage(source, target, how)
    assert main(BUILD_VERBS, ["store", "sync", str(source), str(target), "--channels"]) == code
    said = capsys.readouterr()
    assert complaint in said.err and said.err.count("\n") == 1
    assert said.out == (
        "copied small 1.0-s-r2 (3 B)\nchannel dev of small is 1.0-s-r2 (it is new)\n"
        "1 version copied (3 B), 0 there already\n"
    )
    assert state(target) == {"1.0-s-r2": ("dev",)}, "and no channel prod"


@pytest.mark.parametrize(
    ("wanted", "channels"),
    [
        (["small:prod"], ("prod",)),
        (["small:prod", "small:beta"], ("beta", "prod")),
        (["small:prod", "small:1.0-s-r1"], ("beta", "dev", "prod")),
        (["small:1.0-s-r1"], ("beta", "dev", "prod")),
        (["small"], ("beta", "dev", "prod")),
    ],
)
def test_of_a_channel_that_is_named_no_other_one_is_set(
    fill: Callable[..., Path], sync: Sync, tmp_path: Path, wanted: list[str], channels: tuple[str, ...]
) -> None:
    source, target = fill("source", prod="one", dev="one", beta="one"), new_store(tmp_path / "target")
    sync(source, target, *wanted, "--channels")
    assert state(target) == {"1.0-s-r1": channels}


def test_a_mistyped_path_in_a_registry_has_no_images(
    sync: Sync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RegistryClient, "repositories", lambda *_: iter(["lab/images/small"]))
    monkeypatch.setenv("CTRAIN_CACHE", str(tmp_path / "cache"))
    target = new_store(tmp_path / "target")
    told = "ctrain: oras://h.example/lab/imagse has no images. Check the path, and whether your login may list it\n"
    assert sync("oras://h.example/lab/imagse", target, code=68) == told

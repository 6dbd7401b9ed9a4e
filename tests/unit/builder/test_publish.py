from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from ctrain_builder.files.digests import regions_digest
from ctrain_builder.store import lifecycle
from ctrain_builder.store import publish as module
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import PublishResult
from ctrain_builder.store.signatures import Signature
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.errors import ImageTestError, ImageUnusable, StoreError, UsageError
from ctrain_runtime.store import signatures
from ctrain_runtime.store.manifest import Layer, Manifest
from ctrain_runtime.store.sif import PARTITION
from ctrain_runtime.store.store import open_store
from samples.crashes import run_until
from samples.sample_images import sif, statement_file

Publish = Callable[..., PublishResult]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    init_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def publish(tmp_path: Path, root: Path, make_manifest: Callable[..., Manifest]) -> Publish:
    """publish(content, channel): publishes a tested image with that content."""

    def call(
        content: str = "image", channel: str = "", all_layers: tuple[Layer, ...] = (), **facts: object
    ) -> PublishResult:
        image = tmp_path / "small.sif"
        image.write_text(content)
        digest = f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
        manifest = make_manifest(digest, **facts)
        manifest = replace(manifest, layers=all_layers or manifest.layers)
        return module.publish(image, manifest, root, channel)

    return call


def test_the_first_image(publish: Publish, root: Path) -> None:
    outcome = publish(channel="dev")
    assert outcome.new_version
    assert outcome.image.path == root / "small_1.0-s-py3-r1.sif"
    assert outcome.image.path.read_text() == "image"
    (found,) = open_store(root).images()
    assert found == outcome.image
    assert (root / "channels/small_dev.sif").readlink() == Path("../small_1.0-s-py3-r1.sif")


def test_numbers_count_up_within_tag_and_stack(publish: Publish) -> None:
    versions = [publish(content).image.manifest.version for content in "abc"]
    assert versions == ["1.0-s-r1", "1.0-s-r2", "1.0-s-r3"]
    assert publish("d", tag="2.0").image.manifest.version == "2.0-s-r1"


def test_the_same_image_is_no_new_version_but_may_get_a_channel(publish: Publish, root: Path) -> None:
    publish("a", "dev")
    again = publish("a", "prod")
    assert not again.new_version
    assert again.image.manifest.release == 1
    assert again.image.channels == ("dev", "prod")
    assert len(list(root.glob("*.sif"))) == 1


def test_put_together_again_from_the_same_layers_it_is_no_new_version(publish: Publish) -> None:
    """As on a machine that has lost its cache: a SIF holds random numbers and times."""
    layers = (Layer("base", "k0", 1, "sha256:1"), Layer("upper", "k1", 1, "sha256:2"))
    publish("a", all_layers=layers)
    assert not publish("b", all_layers=layers).new_version
    changed = (layers[0], replace(layers[1], digest="sha256:3"))
    assert publish("c", all_layers=changed).new_version
    unknown = tuple(replace(layer, digest="") for layer in layers)
    assert publish("d", all_layers=unknown).new_version
    assert publish("e", all_layers=unknown).new_version


def test_another_tag_or_stack_is_another_version(publish: Publish, root: Path) -> None:
    """Also of the same layers: it was no new version, under any name that anybody had asked for."""
    layers = (Layer("base", "k0", 1, "sha256:1"),)
    publish("a", all_layers=layers)
    renamed = publish("a", "prod", all_layers=layers, tag="2.0")
    assert (renamed.new_version, renamed.image.manifest.version) == (True, "2.0-s-r1")
    assert not publish("a", all_layers=layers, tag="2.0").new_version
    with lock_store(root) as writer:
        lifecycle.withdraw(writer, ["small:1.0-s-r1"], "leaks")
    with pytest.raises(StoreError, match="this image was withdrawn: leaks"):
        publish("a", all_layers=layers, tag="3.0")


def test_a_channel_moves(publish: Publish, root: Path) -> None:
    publish("a", "prod")
    publish("b", "prod")
    assert {image.manifest.release: image.channels for image in open_store(root).images()} == {1: (), 2: ("prod",)}


@pytest.mark.parametrize("name", ["small_1.0-s-py3-r2.sif", ".small_1.0-s-py3-r2.json.part"])
def test_a_file_left_by_a_crash_keeps_its_number(publish: Publish, root: Path, name: str) -> None:
    publish("a")
    (root / name).write_text("left")
    assert publish("b").image.manifest.release == 3
    assert (root / name).read_text() == "left"


def test_an_empty_file_left_by_a_crash_is_taken_over(publish: Publish, root: Path) -> None:
    """Of a kill before the pending manifest: without one, nothing else would tell whose it is."""
    publish("a")
    left = root / "small_1.0-s-py3-r2.sif"
    left.touch()
    assert publish("b").image.path == left
    assert left.stat().st_size


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize(("mode", "file", "folder"), [(0o755, 0o444, 0o755), (0o2770, 0o440, 0o2770)])
def test_modes_are_those_of_the_root(
    publish: Publish, root: Path, umask: int, mode: int, file: int, folder: int
) -> None:
    shutil.rmtree(root)
    root.mkdir()
    root.chmod(mode)
    before = os.umask(umask)
    try:
        init_store(root)
        path = publish(channel="dev").image.path
    finally:
        os.umask(before)
    modes = [entry.stat().st_mode & 0o7777 for entry in (path, path.with_suffix(".json"), root / "ctrain-store.json")]
    assert modes == [file] * 3
    assert (root / "channels").stat().st_mode & 0o7777 == folder


def test_an_untested_image_is_refused(publish: Publish, root: Path) -> None:
    with pytest.raises(ImageTestError, match="has not passed its tests"):
        publish(passed=False)
    assert [path.name for path in root.iterdir()] == ["ctrain-store.json"]


def test_an_image_that_changed_after_its_tests_is_refused(
    tmp_path: Path, root: Path, make_manifest: Callable[..., Manifest]
) -> None:
    (tmp_path / "small.sif").write_text("tampered")
    with pytest.raises(ImageUnusable, match="has changed since"):
        module.publish(tmp_path / "small.sif", make_manifest("sha256:other"), root)
    assert open_store(root).images() == ()
    assert not list(root.glob(".*.part"))


def test_an_image_of_the_builders_is_known_by_its_regions(
    tmp_path: Path, root: Path, make_manifest: Callable[..., Manifest]
) -> None:
    """Whose digests it knew already. In the store it has that of its file."""
    image = tmp_path / "small.sif"
    image.write_bytes(sif(data=b"base", more=[(PARTITION, b"upper")]))
    layers = tuple(
        Layer(name, name, len(name), f"sha256:{hashlib.sha256(name.encode()).hexdigest()}")
        for name in ("base", "upper")
    )
    manifest = replace(make_manifest(regions_digest(image, layers)), layers=layers)
    good = image.read_bytes()
    for place in (0, len(good) // 2, -1):
        image.write_bytes(good)
        with image.open("r+b") as file:
            file.seek(place % len(good))
            file.write(bytes([good[place] ^ 1]))
        with pytest.raises(ImageUnusable):
            module.publish(image, manifest, root)
    image.write_bytes(good)
    assert module.publish(image, manifest, root).image.manifest.digest == f"sha256:{hashlib.sha256(good).hexdigest()}"
    assert not module.publish(image, manifest, root).new_version


@pytest.mark.parametrize("kind", ["missing", "empty", "foreign"])
def test_publish_makes_no_store(publish: Publish, root: Path, kind: str) -> None:
    """A mistyped --store must not become one."""
    shutil.rmtree(root)
    if kind != "missing":
        root.mkdir()
    if kind == "foreign":
        (root / "thesis.tex").touch()
    before = sorted(root.parent.rglob("*"))
    with pytest.raises(
        StoreError, match=rf"(does not exist|is not a store).*Create a store with: ctrain store init {root}$"
    ):
        publish()
    assert {*root.parent.rglob("*")} - {*before} <= {root.parent / "small.sif"}


def test_a_foreign_image_keeps_its_name_whenever_it_comes(
    publish: Publish, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it comes after the numbers were looked at."""
    monkeypatch.setattr(module, "last_release", lambda *_: 0)
    (root / "small_1.0-s-py3-r1.sif").write_text("foreign")
    assert publish("a").image.manifest.release == 2
    assert (root / "small_1.0-s-py3-r1.sif").read_text() == "foreign"
    assert not list(root.glob(".*.part"))


@pytest.mark.parametrize("channel", ["../prod", "a_b", "a b"])
def test_a_channel_is_a_plain_word(publish: Publish, channel: str) -> None:
    with pytest.raises(UsageError, match="is not a channel name"):
        publish(channel=channel)


def test_a_crash_at_any_step_leaves_the_old_state_or_the_new(
    publish: Publish, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop before the n-th change of the disk, for every n, and look at what readers see."""
    publish("old", "prod")
    shutil.copytree(root, root.with_name("before"), symlinks=True)
    seen: list[list[str]] = []
    for number in itertools.count():
        shutil.rmtree(root)
        shutil.copytree(root.with_name("before"), root, symlinks=True)
        finished = run_until(number, lambda: publish("new", "prod"), monkeypatch)
        images = open_store(root).images()
        seen.append([f"{image.path.read_text()} {''.join(image.channels)}" for image in images])
        assert (root / "channels/small_prod.sif").readlink().name in [image.path.name for image in images]
        if finished:
            break
    states = [state for state, _ in itertools.groupby(seen)]
    assert states == [["old prod"], ["old prod", "new "], ["old ", "new prod"]]


@pytest.mark.parametrize("late", [False, True])
def test_a_crash_at_any_step_gives_no_foreign_image_away(
    publish: Publish, root: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Neither one that has the next number when it is reserved, nor one that takes it after the crash."""
    monkeypatch.setattr(module, "last_release", lambda *_: 0)
    shutil.copytree(root, root.with_name("before"), symlinks=True)
    image = root / "small_1.0-s-py3-r1.sif"
    for number in itertools.count():
        shutil.rmtree(root)
        shutil.copytree(root.with_name("before"), root, symlinks=True)
        if not late:
            image.write_text("foreign")
        finished = run_until(number, lambda: publish("new", "prod"), monkeypatch)
        if not image.exists():
            image.write_text("foreign")
        before = image.read_text()
        with lock_store(root) as writer:
            lifecycle.collect(writer, 0)
        assert before != "foreign" or image.read_text() == "foreign"
        if finished:
            break


class StubSigner:
    """Signs nothing in a file; its statements are those of samples.sample_images."""

    def __init__(self, key: str) -> None:
        self.key, self.made = key * 40, list[str]()

    def check(self) -> None:
        pass

    def sign(self, image: Path) -> str:
        return file_digest(image)

    def has_signed(self, path: Path) -> bool:
        return path.name.endswith(f".{signatures.key_id(self.key)}.sif")

    def make(self, manifest: Manifest, _: object) -> Signature:
        self.made.append(manifest.version)
        return Signature(self.key, statement_file(manifest))


@pytest.fixture
def sign(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def make(key: str) -> Any:
        signer = StubSigner(key)
        monkeypatch.setattr(module.signatures, "make", signer.make)
        return signer

    return make


def test_a_signed_version_counts_only_with_its_signature(
    root: Path, tmp_path: Path, make_manifest: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch, sign: Any
) -> None:
    """Wherever publishing is interrupted; and what is left then is none of the version that gets the number."""
    image = tmp_path / "small.sif"
    for number in itertools.count():
        content = f"image {number}"
        image.write_text(content)
        manifest = make_manifest(f"sha256:{hashlib.sha256(content.encode()).hexdigest()}")
        manifest, signer = replace(manifest, size=len(content)), sign("AB"[number % 2])
        done = run_until(number, partial(module.publish, image, manifest, root, "prod", signer=signer), monkeypatch)
        for one in open_store(root).images():
            added = signatures.added(one.path)
            assert len(added) == 1 and signatures.covers(added[0], one.manifest), (number, added)
        if done:
            break
    assert number > 10


def test_the_number_that_is_signed_is_the_one_that_is_given(
    root: Path, tmp_path: Path, publish: Publish, make_manifest: Callable[..., Manifest], sign: Any
) -> None:
    """Another command takes the number while somebody types a passphrase."""
    image = tmp_path / "signed.sif"
    image.write_text("signed")
    manifest = replace(make_manifest(f"sha256:{hashlib.sha256(b'signed').hexdigest()}"), size=6)
    signer = sign("A")
    first = signer.make

    def slow(manifest: Manifest, _: object) -> Signature:
        if not signer.made:
            publish("another")
        return cast(Signature, first(manifest, _))

    module.signatures.make = slow
    outcome = module.publish(image, manifest, root, signer=signer)
    assert signer.made == ["1.0-s-r1", "1.0-s-r2"]
    (added,) = signatures.added(outcome.image.path)
    assert outcome.image.manifest.release == 2 and signatures.covers(added, outcome.image.manifest)
    assert not module.publish(image, manifest, root, signer=signer).new_version
    assert module.publish(image, manifest, root, signer=sign("B")).image.manifest.release == 3

"""Commands that change a store side by side: each decides while it holds the store's lock, on what it finds then."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files import locks
from ctrain_builder.store import channels, lifecycle, log, writer
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import StoreError
from ctrain_runtime.store import outputs
from ctrain_runtime.store.manifest import Manifest, checksum
from ctrain_runtime.store.store import open_store
from samples.shop import Shop


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Callable[[], object]], None]:
    """first(STORE, ACTION): the next command that wants the store's lock gets it after this action."""
    hold = locks.hold

    def go_first(root: Path, action: Callable[[], object]) -> None:
        @contextlib.contextmanager
        def wait(path: Path, *args: Any, **options: Any) -> Any:
            if path == root / writer.LOCK:
                monkeypatch.setattr(locks, "hold", hold)
                action()
            with hold(path, *args, **options):
                yield

        monkeypatch.setattr(locks, "hold", wait)

    return go_first


First = Callable[[Path, Callable[[], object]], None]


def collect(root: Path) -> None:
    with lock_store(root) as locked:
        lifecycle.collect(locked, grace=0)


def test_restore_beside_gc_offers_no_version_without_its_file(shop: Shop, first: First) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    first(shop.root, lambda: collect(shop.root))
    assert "small:1.0-s-r1 was removed. Build and publish it again" in shop("restore", "small:1.0-s-r1", code=76)
    assert set(shop.versions) == {2, 3}
    assert open_store(shop.root).scan().damaged == ()
    assert shop.file(1, "json", "retired").exists()


def test_restore_publishes_the_file_that_it_has_read(shop: Shop, first: First, tmp_path: Path) -> None:
    """In quarantine, an image was replaced by a good copy, and by a bad one again."""
    good = shop.file(1).read_bytes()
    shop.file(1).chmod(0o644)
    shop.file(1).write_bytes(b"bad")
    shop("verify", "--quarantine", "--yes", "--cache", str(tmp_path / "cache"), code=69)
    quarantined = shop.file(1, "sif", "quarantine")
    quarantined.write_bytes(good)
    first(shop.root, lambda: quarantined.write_bytes(b"bad"))
    complaint = "small:1.0-s-r1 was changed by another command meanwhile. Run the command again"
    assert complaint in shop("restore", "small:1.0-s-r1", code=76)
    assert set(shop.versions) == {2, 3}
    quarantined.write_bytes(good)
    shop("restore", "small:1.0-s-r1")
    assert set(shop.versions) == {1, 2, 3}


def test_verify_moves_no_version_that_became_whole_again(shop: Shop, first: First, tmp_path: Path) -> None:
    """By an administrator, from a backup, while the rest of the store was read."""
    good = shop.file(1).read_bytes()
    shop.file(1).chmod(0o644)
    shop.file(1).write_bytes(b"bad")

    def repair() -> None:
        (tmp_path / "copy").write_bytes(good)
        (tmp_path / "copy").replace(shop.file(1))

    first(shop.root, repair)
    verify = ("verify", "--quarantine", "--yes", "--cache", str(tmp_path / "cache"))
    said = shop(*verify, code=69, stream="err")
    assert said == "small:1.0-s-r1 stays: it was changed while the store was read; verify it again\n"
    assert set(shop.versions) == {1, 2, 3}
    shop(*verify)


def test_the_catalogue_lists_no_version_that_was_withdrawn_meanwhile(shop: Shop, first: First) -> None:
    """Its page had been made before; the other command finds no older one to bring up to date."""
    first(shop.root, lambda: withdraw(shop.root))
    shop("catalogue")
    page = (shop.root / "catalogue.html").read_text()
    assert "small%3A1.0-s-r3" in page and "small%3A1.0-s-r2" not in page
    assert outputs.find_stale(shop.root, open_store(shop.root).scan()) == []


@pytest.fixture
def pair(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> tuple[Path, Path]:
    """A store whose channel prod points to its second version, and one that is to become like it."""
    for name, contents in (("source", ("one", "two")), ("target", ("one",))):
        init_store(tmp_path / name)
        for content in contents:
            (tmp_path / "image").write_text(content)
            manifest = make_manifest(f"sha256:{hashlib.sha256(content.encode()).hexdigest()}")
            publish(tmp_path / "image", replace(manifest, size=len(content)), tmp_path / name, "prod")
    return tmp_path / "source", tmp_path / "target"


def withdraw(root: Path) -> None:
    with lock_store(root) as locked:
        lifecycle.withdraw(locked, ["small:1.0-s-r2"], "leaks")


def prod(root: Path) -> str:
    return channels.pointed(root, "small", "prod")


def test_sync_moves_no_channel_to_a_version_that_was_withdrawn_where_it_goes(
    pair: tuple[Path, Path], first: First, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = pair
    sync = ["store", "sync", str(source), str(target)]
    assert main(BUILD_VERBS, sync) == 0
    first(target, lambda: withdraw(target))
    capsys.readouterr()
    assert main(BUILD_VERBS, [*sync, "--channels", "--json"]) == 76
    told = capsys.readouterr()
    complaint = f"channel prod of small stays: 1.0-s-r2 was withdrawn: leaks in {target}. Run the command again"
    assert f"ctrain: {complaint}\n" in told.err
    assert (json.loads(told.out)["channels"], json.loads(told.out)["left_out"]) == ([], [complaint])
    assert prod(target) == "1.0-s-r1"


def test_sync_moves_no_channel_to_a_version_that_was_withdrawn_where_it_comes_from(
    pair: tuple[Path, Path], first: First, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it was copied, which takes minutes."""
    source, target = pair
    first(target, lambda: withdraw(source))
    assert main(BUILD_VERBS, ["store", "sync", str(source), str(target), "--channels"]) == 76
    assert f"channel prod of small points to no version in {source} now, not to 1.0-s-r2" in capsys.readouterr().err
    assert prod(target) == "1.0-s-r1"


def test_sync_takes_no_version_that_failed_its_tests(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = pair
    path = source / "small_1.0-s-py3-r2.json"
    data = json.loads(path.read_text())
    data["tests"] = [{**data["tests"][0], "passed": False}]
    path.chmod(0o644)
    del data["checksum"]
    path.write_text(json.dumps({**data, "checksum": checksum(data)}))
    assert main(BUILD_VERBS, ["store", "sync", str(source), str(target), "small:prod", "--channels"]) == 78
    told = capsys.readouterr()
    assert f"ctrain: left out: small:1.0-s-r2 in {source} failed its tests (imports)" in told.err
    assert told.out == "0 versions copied (0 B), 0 there already\n"
    assert prod(target) == "1.0-s-r1"


def killed(shop: Shop, monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    """A command that is killed after it has written the log, before it has moved a channel."""
    with monkeypatch.context() as patched:
        patched.setattr(channels, "relink", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with contextlib.suppress(KeyboardInterrupt):
            shop(*argv, code=None)


def test_rollback_chooses_no_version_that_never_was_in_the_channel(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a promotion that was killed, the log has the beginning alone."""
    before = shop.versions
    assert before == {1: (), 2: ("prod",), 3: ("dev",)}
    killed(shop, monkeypatch, "promote", "small", "1.0-s-r3", "prod")
    assert log_of(shop)[-1] == "1.0-s-r3" and shop.versions == before
    shop.publish("four", "prod")
    assert shop.data("rollback", "small", "prod")["version"] == "1.0-s-r2"
    assert shop.data("rollback", "small", "prod")["version"] == "1.0-s-r1"


def test_a_rollback_that_was_killed_was_none(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(shop, monkeypatch, "rollback", "small", "prod")
    shop.publish("four", "prod")
    assert shop.data("rollback", "small", "prod")["version"] == "1.0-s-r2"


def log_of(shop: Shop) -> list[str]:
    return [entry.version for entry in log.read(shop.root) if entry.channel == "prod"]


@pytest.fixture
def image(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> tuple[Path, Manifest]:
    """One that the store does not have yet."""
    path = tmp_path / "new.sif"
    path.write_text("new")
    return path, replace(make_manifest(f"sha256:{hashlib.sha256(b'new').hexdigest()}"), size=3)


def test_what_was_withdrawn_while_it_was_published_stays_out(
    shop: Shop, first: First, image: tuple[Path, Manifest]
) -> None:
    """A colleague has published the same image meanwhile, and seen what it leaks."""

    def others() -> None:
        shop.publish("new")
        shop("withdraw", "small:1.0-s-r4", "--why", "leaks", "--yes")

    first(shop.root, others)
    with pytest.raises(StoreError, match="this image was withdrawn: leaks"):
        publish(*image, shop.root, "prod")
    assert shop.versions == {1: (), 2: ("prod",), 3: ("dev",)}


def test_a_number_that_was_taken_meanwhile_is_not_given_again(
    shop: Shop, first: First, image: tuple[Path, Manifest]
) -> None:
    """Not even if its version is gone already."""

    def others() -> None:
        shop.publish("four")
        shop("retire", "small:1.0-s-r4", "--yes")
        collect(shop.root)

    first(shop.root, others)
    assert publish(*image, shop.root).image.manifest.release == 5
    assert set(shop.versions) == {1, 2, 3, 5}

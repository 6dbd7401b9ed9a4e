"""`ctrain store verify`: what is damaged, what only could not be checked, and what quarantine does."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_builder.store import verify as module
from samples.long_mode import LONG
from samples.shop import Shop

Verify = Callable[..., str]


@pytest.fixture
def verify(shop: Shop, tmp_path: Path) -> Verify:
    """verify(OPTIONS): what it prints to stdout."""

    def run(*options: str, code: Optional[int] = 0, stream: str = "out") -> str:
        return shop("verify", *options, "--cache", str(tmp_path / "cache"), code=code, stream=stream)

    return run


def spoil(path: Path, text: str = "bad") -> None:
    path.chmod(0o644)
    path.write_text(text)


def test_nothing_is_wrong(shop: Shop, verify: Verify, tmp_path: Path) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    assert verify().startswith("3 versions whole, 0 damaged, 0 not checked (11 B, ")
    assert not list((tmp_path / "cache").glob("verified-*"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_flipped_byte_of_an_image(shop: Shop, verify: Verify, place: int) -> None:
    """It is reported, and nothing else is done."""
    path = shop.file(1)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    spoil(path, content.decode())
    before = sorted(shop.root.rglob("*"))
    said = verify(code=69)
    assert f"digest mismatch: {path} is sha256:" in said
    assert "2 versions whole, 1 damaged, 0 not checked" in said
    assert said.endswith("with: ctrain store verify --quarantine --yes\n")
    assert sorted(shop.root.rglob("*")) == before
    assert (
        verify("--quarantine", "--yes", code=69, stream="err") == f"small:1.0-s-r1 is in {shop.root}/quarantine now\n"
    )
    assert set(shop.versions) == {2, 3}
    assert shop.file(1, "json", "quarantine").exists()
    assert shop.file(1, "sif", "quarantine").read_bytes() == bytes(content)
    entry = shop.data("log")["entries"][-1]
    assert (entry["action"], entry["version"]) == ("quarantine", "1.0-s-r1")
    assert "digest mismatch" in entry["why"]
    shop.publish("four")
    assert set(shop.versions) == {2, 3, 4}


def test_a_truncated_image(shop: Shop, verify: Verify) -> None:
    spoil(shop.file(1), "on")
    assert "(2 bytes), its manifest records sha256:" in verify(code=69)


def test_every_flipped_byte_of_a_manifest_is_found(shop: Shop, verify: Verify) -> None:
    path = shop.file(1, "json")
    good = path.read_bytes()
    path.chmod(0o644)
    schema = good.index(b'"schema": ') + len(b'"schema": ')
    # All of them, or some from a place of its own each time (and the one that is a newer format).
    places = range(len(good)) if LONG else sorted({schema, *range(random.randrange(97), len(good), 97)})
    for place, byte in ((place, good[place]) for place in places):
        path.write_bytes(good[:place] + bytes([byte ^ 1]) + good[place + 1 :])
        assert verify(code=76 if place == schema else 69), f"byte {place}"  # 5 instead of 4: a newer schema


def test_a_version_that_a_channel_needs_stays_unless_forced(shop: Shop, verify: Verify) -> None:
    spoil(shop.file(2))
    said = verify("--quarantine", "--yes", code=69, stream="err")
    assert said == "small:1.0-s-r2 stays: needed by channel prod; --force moves it anyway\n"
    assert shop.versions[2] == ("prod",)
    said = verify("--quarantine", "--yes", "--force", code=69, stream="err")
    assert f"small:1.0-s-r2 is in {shop.root}/quarantine now\nsmall:prod is an error for users until" in said
    entries = shop.data("log")["entries"][-2:]
    assert [(one["action"], one.get("channel", "")) for one in entries] == [("quarantine", ""), ("quarantine", "prod")]
    assert "points to 1.0-s-r2: it is damaged and in quarantine" in shop("show", "small", code=76)
    assert shop.data("rollback", "small", "prod")["version"] == "1.0-s-r1"


def test_a_version_that_a_job_needs_stays_unless_forced(shop: Shop, verify: Verify) -> None:
    spoil(shop.file(1))
    lease = shop.root / "in-use" / f"{shop.file(1).name}@1"
    lease.touch()
    os.utime(lease, (time.time() + 3600,) * 2)
    assert "small:1.0-s-r1 stays: needed by a job of " in verify("--quarantine", "--yes", code=69, stream="err")
    assert shop.file(1).exists()
    assert "small:1.0-s-r1 is in " in verify("--quarantine", "--yes", "--force", code=69, stream="err")


def test_force_is_for_quarantine(verify: Verify) -> None:
    assert "--force and --yes are for --quarantine" in verify("--force", code=64, stream="err")


def test_quarantine_lists_first(shop: Shop, verify: Verify) -> None:
    spoil(shop.file(1))
    before = sorted(shop.root.rglob("*"))
    assert verify("--quarantine", code=69).endswith("with: ctrain store verify --quarantine --yes\n")
    assert sorted(shop.root.rglob("*")) == before


def test_gc_empties_quarantine_when_it_is_asked_to(shop: Shop, verify: Verify) -> None:
    spoil(shop.file(1))
    verify("--quarantine", "--yes", code=69)
    (shop.root / "quarantine/notes.txt").write_text("mine")
    assert shop("gc", "--yes", "--grace", "0") == "nothing to remove\n"
    assert shop("gc", "--quarantine").endswith("quarantined\n1 file (3 B); confirm with --yes\n")
    assert shop.file(1, "sif", "quarantine").exists()
    assert shop("gc", "--quarantine", "--yes").endswith("removed 1 file (3 B)\n")
    assert sorted(path.name for path in (shop.root / "quarantine").iterdir()) == [
        "notes.txt",
        shop.file(1, "json").name,
    ]
    assert shop.data("log")["entries"][-1] == {
        **shop.data("log")["entries"][-1],
        "action": "remove",
        "why": "quarantined",
    }
    assert "small:1.0-s-r1 was removed" in shop("restore", "small:1.0-s-r1", code=76)
    shop.publish("four")
    assert set(shop.versions) == {2, 3, 4}  # no number is given again


def test_gc_empties_quarantine_of_a_version_that_is_published_again(shop: Shop, verify: Verify) -> None:
    whole, manifest = shop.file(1).read_bytes(), shop.file(1, "json").read_bytes()
    spoil(shop.file(1))
    verify("--quarantine", "--yes", code=69)
    shop.file(1).write_bytes(whole)
    shop.file(1, "json").write_bytes(manifest)
    assert shop("gc", "--quarantine", "--yes").endswith("removed 1 file (3 B)\n")
    assert not shop.file(1, "sif", "quarantine").exists()
    assert set(shop.versions) == {1, 2, 3}


def test_nothing_in_quarantine_is_replaced(shop: Shop, verify: Verify) -> None:
    (shop.root / "quarantine").mkdir()
    shop.file(1, "sif", "quarantine").write_text("an earlier one")
    spoil(shop.file(1))
    assert "quarantine/small_1.0-s-py3-r1.sif exists already" in verify("--quarantine", "--yes", code=76, stream="err")
    assert shop.file(1, "sif", "quarantine").read_text() == "an earlier one"
    assert shop.file(1).exists() and shop.file(1, "json").exists()


def test_a_version_that_cannot_be_moved_keeps_no_other_one(shop: Shop, verify: Verify) -> None:
    (shop.root / "quarantine").mkdir()
    for number in (1, 3):
        shop.file(number, "sif", "quarantine").write_text("an earlier one")
    for number in (1, 2, 3):
        spoil(shop.file(number))
    said = verify("--quarantine", "--yes", "--force", code=76, stream="err")
    assert all(f"quarantine/small_1.0-s-py3-r{number}.sif exists already" in said for number in (1, 3))
    assert set(shop.versions) == {1, 3}, "the second is in quarantine"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("suffix", ["sif", "json"])
def test_what_cannot_be_read_is_not_damaged(
    shop: Shop, verify: Verify, monkeypatch: pytest.MonkeyPatch, number: int, suffix: str
) -> None:
    """It stays, and the others are read all the same."""
    spoil(shop.file(1))
    unreadable = shop.file(2, suffix)
    opened: Callable[..., Any] = Path.open

    def fails(path: Path, *args: Any, **options: Any) -> Any:
        if path == unreadable:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fails)
        said = verify("--quarantine", "--yes", "--force", code=69)
    assert f"could not be checked: cannot read {unreadable}: {os.strerror(number)}" in said
    assert "1 version whole, 1 damaged, 1 not checked" in said
    assert set(shop.versions) == {2, 3}


def test_what_cannot_be_checked_is_an_error(shop: Shop, verify: Verify) -> None:
    path = shop.next_schema(1)
    said = verify("--quarantine", "--yes", "--force", code=76)
    assert f"could not be checked: unsupported manifest schema 5 in {path}" in said
    assert path.exists() and shop.file(1).exists()


def test_a_version_that_is_retired_meanwhile(shop: Shop, verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    read = module.read_manifest

    def retiring(path: Path) -> object:
        if path == shop.file(1, "json"):
            shop("retire", "small:1.0-s-r1", "--yes")
            shop("gc", "--grace", "0", "--yes")
        return read(path)

    monkeypatch.setattr(module, "read_manifest", retiring)
    assert "0 damaged, 0 not checked" in verify("--jobs", "1")


def test_a_retired_version_that_gc_removes_meanwhile(
    shop: Shop, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    digest = module._digest

    def removing(path: Path, done: Callable[[int], None]) -> str:
        if path == shop.file(1):
            shop("gc", "--grace", "0", "--yes")
        return digest(path, done)

    monkeypatch.setattr(module, "_digest", removing)
    assert "0 damaged, 0 not checked" in verify("--jobs", "1")


def test_an_interrupted_pass_is_resumed(verify: Verify, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    digest = module._digest

    def interrupted(path: Path, done: Callable[[int], None]) -> str:
        if len(read) == 1:
            raise KeyboardInterrupt
        read.append(path.name)
        return digest(path, done)

    monkeypatch.setattr(module, "_digest", interrupted)
    verify("--jobs", "1", code=130)
    monkeypatch.setattr(module, "_digest", lambda path, done: read.append(path.name) or digest(path, done))
    verify("--jobs", "1")
    assert read == ["small_1.0-s-py3-r1.sif", "small_1.0-s-py3-r2.sif", "small_1.0-s-py3-r3.sif"]
    verify("--jobs", "1")
    assert len(read) == 6  # a new pass reads all


def test_one_image(verify: Verify) -> None:
    assert "has no image 'large'" in verify("large", code=64, stream="err")
    assert verify("small").startswith("3 versions whole")


# --- and back ---


def test_a_quarantined_version_is_restored_when_it_is_whole(shop: Shop, verify: Verify) -> None:
    spoil(shop.file(2))
    verify("--quarantine", "--yes", "--force", code=69)
    image = shop.file(2, "sif", "quarantine")
    assert f"{image} is still damaged: digest mismatch" in shop("restore", "small:1.0-s-r2", code=69)
    assert set(shop.versions) == {1, 3}
    image.write_text("two")  # from a backup
    assert shop("restore", "small:1.0-s-r2") == "small:1.0-s-r2 is offered again\n"
    assert shop.versions == {1: (), 2: ("prod",), 3: ("dev",)}
    assert list((shop.root / "quarantine").iterdir()) == []
    assert verify().startswith("3 versions whole")


def test_a_quarantine_that_was_interrupted_can_be_restored(shop: Shop) -> None:
    """The manifest was moved, the image was not."""
    (shop.root / "quarantine").mkdir()
    shop.file(1, "json").rename(shop.file(1, "json", "quarantine"))
    assert shop("gc", "--grace", "0", "--yes") == "nothing to remove\n"
    shop("restore", "small:1.0-s-r1")
    assert set(shop.versions) == {1, 2, 3}


def test_of_a_retired_version_only_the_image_is_quarantined(shop: Shop, verify: Verify) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    spoil(shop.file(1))
    verify("--quarantine", "--yes", code=69)
    assert shop.file(1, "json", "retired").exists()
    assert "is still damaged" in shop("restore", "small:1.0-s-r1", code=69)
    shop.file(1, "sif", "quarantine").write_text("one")
    shop("restore", "small:1.0-s-r1")
    assert set(shop.versions) == {1, 2, 3}


@pytest.mark.parametrize("words", [("small:1.0-s-r1",), ("small", "1.0-s-r1")])
def test_one_version_is_verified(shop: Shop, verify: Verify, words: tuple[str, ...]) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    spoil(shop.file(2))
    assert verify(*words).startswith("1 version whole, 0 damaged, 0 not checked (3 B, ")
    said = verify("small:1.0-s-r9", code=64, stream="err")
    assert "has no image 'small:1.0-s-r9'. " in said
    assert said.endswith("Available: small:1.0-s-r1, small:1.0-s-r2, small:1.0-s-r3\n")

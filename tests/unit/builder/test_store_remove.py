"""`ctrain store remove`: one leaked version goes at once, and nothing else does."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store import remove as module
from ctrain_builder.store.publish import publish
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import CtrainError, StoreError
from ctrain_runtime.store import lease
from ctrain_runtime.store.manifest import Layer
from ctrain_runtime.store.store import open_store
from samples.crashes import run_until
from samples.shop import Shop

STAYS = "its manifest, signatures and log stay here; copies in other stores, registries and caches stay, too\n"


def everything(shop: Shop) -> dict[Path, bytes]:
    files = (path for path in shop.root.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.suffix not in (".log", ".lock")}


def lease_on(shop: Shop, number: int) -> None:
    path = lease.lease_path(str(shop.root / lease.LEASES), str(shop.file(number)), Path("/scratch/kim/run"))
    lease.acquire(path, "/scratch/kim/run")


def test_it_shows_first_what_it_would_do(shop: Shop) -> None:
    before = everything(shop)
    said = shop("remove", "small:1.0-s-r1")
    assert said == f"would remove small:1.0-s-r1 (3 B): {shop.file(1)}\n{STAYS}confirm with --yes\n"
    assert everything(shop) == before


def test_one_version_goes_and_no_other_retired_one(shop: Shop) -> None:
    shop.publish("four")
    shop("retire", "small:1.0-s-r1", "small:1.0-s-r4", "--yes")
    before = everything(shop)
    shop("remove", "small", "1.0-s-r4", "--why", "holds a token", "--yes")
    gone = {shop.file(4)}
    assert {path for path in before if not path.exists()} == gone
    assert {path: text for path, text in everything(shop).items() if path in before} == {
        path: text for path, text in before.items() if path not in gone
    }
    entry = shop.data("log")["entries"][-1]
    assert (entry["action"], entry["version"], entry["why"]) == ("remove", "1.0-s-r4", "holds a token")
    assert "small:1.0-s-r4 was removed before" in shop("remove", "small:1.0-s-r4", "--yes", code=76)
    assert "small:1.0-s-r4 was removed" in shop("restore", "small:1.0-s-r4", code=76)


def test_a_published_version_is_retired_with_it_and_its_number_is_not_given_again(shop: Shop) -> None:
    shop("remove", "small:1.0-s-r1", "--yes")
    assert set(shop.versions) == {2, 3}
    assert shop.file(1, "json", "retired").exists()
    assert "image 'small:1.0-s-r1' was removed" in shop("show", "small:1.0-s-r1", code=68)
    states = {one["version"]: one["state"] for one in shop.data("list", "--all")["versions"]}
    assert states == {"1.0-s-r1": "removed", "1.0-s-r2": "published", "1.0-s-r3": "published"}
    shop.publish("one")
    assert set(shop.versions) == {2, 3, 4}


def test_what_is_gone_is_not_verified(shop: Shop, tmp_path: Path) -> None:
    shop("remove", "small:1.0-s-r1", "--yes")
    assert "2 versions whole, 0 damaged" in shop("verify", "--cache", str(tmp_path / "cache"))


def test_with_a_reason_the_same_image_is_not_published_again(shop: Shop) -> None:
    shop("remove", "small:1.0-s-r1", "--why", "holds a token", "--yes")
    assert "was withdrawn: holds a token" in shop("show", "small:1.0-s-r1", code=68)
    with pytest.raises(StoreError, match="this image was withdrawn: holds a token") as refused:
        shop.publish("one")
    assert refused.value.hint == "Build another"
    said = shop("restore", "small:1.0-s-r1", code=76)
    assert "publish it again" not in said, "which is refused"
    assert "Build another" in said


def test_a_version_of_a_channel_goes_only_by_force_and_users_are_told_why(shop: Shop) -> None:
    before = everything(shop)
    assert "needed by channel prod\n" in shop("remove", "small:1.0-s-r2")
    assert shop("remove", "small:1.0-s-r2").endswith("confirm with --yes and --force\n")
    complaint = "small:1.0-s-r2 is needed by channel prod. Move its channels with: ctrain store promote"
    assert complaint in shop("remove", "small:1.0-s-r2", "--yes", code=76)
    assert everything(shop) == before
    said = shop("remove", "small:1.0-s-r2", "--why", "holds a token", "--force", "--yes")
    assert "small:prod is an error for users until it points to another version" in said
    assert "points to 1.0-s-r2: it was withdrawn: holds a token" in shop.ctrain("images", "show", "small", code=76)
    assert shop.versions == {1: (), 3: ("dev",)}
    assert not shop.file(2).exists()


def test_without_a_reason_the_channel_still_tells(shop: Shop) -> None:
    shop("remove", "small:1.0-s-r2", "--force", "--yes")
    assert "it was withdrawn: removed by the store's administrators" in shop("show", "small:prod", code=76)


def test_a_version_that_jobs_need_goes_only_by_force(shop: Shop) -> None:
    lease_on(shop, 1)
    host = os.uname().nodename
    assert f"({host}:/scratch/kim/run), until" in shop("remove", "small:1.0-s-r1")
    assert "is needed by a job of " in shop("remove", "small:1.0-s-r1", "--yes", code=76)
    assert shop.file(1).exists()
    assert shop.data("remove", "small:1.0-s-r1", "--force", "--yes")["needed_by"][0].startswith("a job of ")
    assert not shop.file(1).exists()


def test_a_lease_that_ended_keeps_nothing(shop: Shop) -> None:
    lease_on(shop, 1)
    for path in (shop.root / lease.LEASES).iterdir():
        os.utime(path, (time.time() - 10, time.time() - 10))
    shop("remove", "small:1.0-s-r1", "--yes")
    assert not shop.file(1).exists()


def test_a_quarantined_version(shop: Shop, tmp_path: Path) -> None:
    shop.file(1).chmod(0o644)
    shop.file(1).write_text("bad")
    shop("verify", "--quarantine", "--yes", "--cache", str(tmp_path / "cache"), code=69)
    shop("remove", "small:1.0-s-r1", "--yes")
    assert not shop.file(1, "sif", "quarantine").exists()
    assert shop.file(1, "json", "retired").exists()
    assert "image 'small:1.0-s-r1' was removed" in shop("show", "small:1.0-s-r1", code=68)


def test_a_quarantined_version_that_leaks_is_not_published_again(shop: Shop, tmp_path: Path) -> None:
    shop.file(1).chmod(0o644)
    shop.file(1).write_text("bad")
    shop("verify", "--quarantine", "--yes", "--cache", str(tmp_path / "cache"), code=69)
    shop("remove", "small:1.0-s-r1", "--why", "holds a token", "--yes")
    with pytest.raises(StoreError, match="this image was withdrawn: holds a token"):
        shop.publish("one")


@pytest.mark.parametrize("why", [(), ("--why", "holds a token")])
def test_a_quarantined_version_that_was_removed_is_not_brought_back(
    shop: Shop, tmp_path: Path, why: tuple[str, ...]
) -> None:
    """`sync` replaces what is damaged; not what was removed."""
    other = shutil.copytree(shop.root, tmp_path / "other")
    shop.file(1).chmod(0o644)
    shop.file(1).write_text("bad")
    shop("verify", "--quarantine", "--yes", "--cache", str(tmp_path / "cache"), code=69)
    shop("remove", "small:1.0-s-r1", *why, "--yes")
    assert main(BUILD_VERBS, ["store", "sync", str(other), str(shop.root)]) == 0
    assert set(shop.versions) == {2, 3}
    assert not shop.file(1).exists()


def test_a_damaged_copy_in_quarantine_goes_with_it(shop: Shop, tmp_path: Path) -> None:
    """A version that was copied again, after its first copy was moved away: what leaks is in both."""
    text = shop.file(1).read_text()
    shop.file(1).chmod(0o644)
    shop.file(1).write_text("bad")
    shop("verify", "--quarantine", "--yes", "--cache", str(tmp_path / "cache"), code=69)
    shop.file(1).write_text(text)
    shop.file(1, "json").write_text(shop.file(1, "json", "quarantine").read_text())
    damaged = shop.file(1, "sif", "quarantine")
    assert f"would remove small:1.0-s-r1 (6 B): {shop.file(1)}, {damaged}\n" in shop("remove", "small:1.0-s-r1")
    shop("remove", "small:1.0-s-r1", "--yes")
    assert not shop.file(1).exists() and not damaged.exists()
    assert "small:1.0-s-r1 was removed before" in shop("remove", "small:1.0-s-r1", "--yes", code=76)


def test_versions_that_have_its_topmost_layer_are_named(shop: Shop, tmp_path: Path) -> None:
    """What leaks in it leaks there, too."""
    image = tmp_path / "image.sif"
    for content, layers in (("four", "ab"), ("five", "abc"), ("six", "ac")):
        image.write_text(content)
        manifest = replace(shop.make(f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"), size=len(content))
        publish(
            image, replace(manifest, layers=tuple(Layer(one, one, 1, f"sha256:{one}") for one in layers)), shop.root
        )
    assert shop.data("remove", "small:1.0-s-r4")["relatives"] == ["small:1.0-s-r5"]
    assert "its topmost layer is also in small:1.0-s-r5\n" in shop("remove", "small:1.0-s-r4")
    assert shop.data("remove", "small:1.0-s-r1")["relatives"] == [], "layers of unknown contents are like no others"


@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (("small:prod",), 68, "no version is called 'small:prod': name one as NAME:VERSION"),
        (("small",), 68, "no version is called 'small'"),
        (("small:1.0-s-r9",), 68, "Available: small:1.0-s-r1, small:1.0-s-r2, small:1.0-s-r3"),
        (("../../etc:1.0-s-r1",), 68, "no version is called"),
    ],
)
def test_only_a_version_is_removed(shop: Shop, argv: tuple[str, ...], code: int, complaint: str) -> None:
    before = everything(shop)
    assert complaint in shop("remove", *argv, "--yes", "--force", code=code)
    assert everything(shop) == before


def test_a_crash_at_any_step_leaves_a_version_or_none(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never one that is offered without its file; and the command can be run again."""

    def remove() -> None:
        with lock_store(shop.root) as writer:
            module.remove(writer, "small:1.0-s-r2", "leaks", force=True)

    for number in range(100):
        if run_until(number, remove, monkeypatch):
            break
        scan = open_store(shop.root).scan()
        assert scan.damaged == ()
        with contextlib.suppress(CtrainError):
            remove()
        assert not shop.file(2).exists()
        shop.file(2).write_text("two")
        shop("restore", "small:1.0-s-r2")
    assert number > 3


def test_a_retired_version_is_withdrawn(shop: Shop) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    shop("withdraw", "small:1.0-s-r1", "--why", "holds a token", "--yes")
    assert shop("show", "small:1.0-s-r1").startswith("small:1.0-s-r1 was withdrawn: holds a token\n")
    withdrawn = "image 'small:1.0-s-r1' was withdrawn: holds a token"
    assert withdrawn in shop.ctrain("images", "show", "small:1.0-s-r1", code=68), "to users"
    with pytest.raises(StoreError, match="this image was withdrawn: holds a token"):
        shop.publish("one")
    shop("restore", "small:1.0-s-r1")
    assert set(shop.versions) == {1, 2, 3}


def test_module_files_and_catalogue_follow(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    shop("modules", "--output", str(tmp_path / "modules"))
    shop("catalogue")
    assert (tmp_path / "modules/ctrain-small/1.0-s-r1").exists()
    shop("remove", "small:1.0-s-r1", "--yes")
    assert not (tmp_path / "modules/ctrain-small/1.0-s-r1").exists()
    assert "1.0-s-r1" not in (shop.root / "catalogue.html").read_text()

"""Channels: how they may be called, how they are removed, and that one which leads nowhere is an error everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_runtime.errors import StoreError
from ctrain_runtime.store.references import resolve, select
from ctrain_runtime.store.store import Store, open_store
from samples.shop import Shop

HIJACK = "1.0-s-r1"


@pytest.mark.parametrize("channel", ["1.0-s-r1", "2.13.0-t-r2", "1.0-s-r1-flat", "x-r0"])
def test_no_channel_is_called_like_a_version(shop: Shop, channel: str) -> None:
    complaint = f"channel name '{channel}' looks like a version"
    assert complaint in shop("promote", "small", "1.0-s-r2", channel, code=64)
    assert complaint in shop("rollback", "small", channel, code=64)
    assert {one.name for one in (shop.root / "channels").iterdir()} == {"small_dev.sif", "small_prod.sif"}


def test_versions_come_before_channels(shop: Shop) -> None:
    """A channel of an older ctrain, or made by hand, may be called like a version."""
    (shop.root / f"channels/small_{HIJACK}.sif").symlink_to("../small_1.0-s-py3-r3.sif")
    assert resolve([open_store(shop.root)], f"small:{HIJACK}").manifest.release == 1
    shop("promote", "small", HIJACK, "prod")
    assert shop.versions[1] == ("prod",)
    shop("channel", "rm", "small", HIJACK, "--yes")
    assert shop.versions[3] == ("dev",)


def test_a_channel_is_removed_and_comes_back_by_rollback(shop: Shop) -> None:
    assert shop("channel", "rm", "small", "prod") == (
        "would remove channel prod of small (it points to 1.0-s-r2); confirm with --yes\n"
    )
    assert shop.versions[2] == ("prod",)
    said = shop("channel", "rm", "small", "prod", "--why", "not ready", "--yes")
    assert said == "channel prod of small is removed (it was 1.0-s-r2); small now resolves to 1.0-s-r3\n"
    assert shop.versions == {1: (), 2: (), 3: ("dev",)}
    entry = shop.data("log")["entries"][-1]
    assert (entry["action"], entry["channel"], entry["before"], entry["why"]) == (
        *("channel rm", "prod", "1.0-s-r2", "not ready"),
    )
    assert "small has no channel 'prod'" in shop("channel", "rm", "small", "prod", code=68)
    shop("rollback", "small", "prod")
    assert shop.versions[2] == ("prod",)


@pytest.mark.parametrize(("name", "channel"), [("smal", "dev"), ("small", "beta"), ("..", "x"), ("small", "../../x")])
def test_only_a_channel_that_exists_is_removed(shop: Shop, name: str, channel: str) -> None:
    before = sorted(shop.root.rglob("*"))
    assert f"{name} has no channel '{channel}'" in shop("channel", "rm", name, channel, code=68)
    assert sorted(shop.root.rglob("*")) == before


def test_a_file_in_place_of_a_channel_is_not_removed(shop: Shop) -> None:
    copy = shop.root / "channels/small_beta.sif"
    copy.write_text("an image")
    assert f"{copy} is not a symlink" in shop("channel", "rm", "small", "beta", code=76)
    assert copy.read_text() == "an image"


def gone(shop: Shop) -> str:
    for suffix in ("sif", "json"):
        shop.file(2, suffix).unlink()
    return "points to 1.0-s-r2: it does not exist"


def newer(shop: Shop) -> str:
    shop.next_schema(2)
    return "points to 1.0-s-r2: unsupported manifest schema"


def damaged(shop: Shop) -> str:
    shop.file(2, "json").chmod(0o644)
    shop.file(2, "json").write_text("{")
    return f"points to 1.0-s-r2: {shop.file(2, 'json')} is not a manifest"


def outside(shop: Shop) -> str:
    return relinked(shop, "/etc/passwd")


def above(shop: Shop) -> str:
    return relinked(shop, "../../secret.sif")


def relinked(shop: Shop, target: str) -> str:
    link = shop.root / "channels/small_prod.sif"
    link.unlink()
    link.symlink_to(target)
    return "is not a symlink to an image in the store"


def a_file(shop: Shop) -> str:
    link = shop.root / "channels/small_prod.sif"
    link.unlink()
    link.write_text("a copy, not a link")
    return "is not a symlink to an image in the store"


def retired_by_hand(shop: Shop) -> str:
    (shop.root / "retired").mkdir()
    shop.file(2, "json").rename(shop.file(2, "json", "retired"))
    return "points to 1.0-s-r2: it was retired"


WAYS = [gone, newer, damaged, outside, above, a_file, retired_by_hand]


@pytest.mark.parametrize("spoil", WAYS)
def test_a_dangling_prod_is_an_error_everywhere(shop: Shop, tmp_path: Path, spoil: Callable[[Shop], str]) -> None:
    """Never another version instead: dev is newer and would do."""
    problem = f"channel prod of small {spoil(shop)}"
    for reference in ("small", "small:prod"):
        with pytest.raises(StoreError, match="ctrain store promote small VERSION prod") as caught:
            resolve([open_store(shop.root)], reference)
        assert caught.value.message.startswith(problem)
        assert problem in shop("show", reference, code=76)
    assert resolve([open_store(shop.root)], "small:dev").manifest.release == 3
    assert problem in shop.ctrain("doctor", code=76, stream="out")
    assert problem in shop("verify", "--cache", str(tmp_path / "cache"), code=None, stream="out")
    assert problem in shop("modules", "--output", str(tmp_path / "modules"), code=76)
    module = tmp_path / "modules/ctrain-small/prod"
    assert 'puts stderr "channel prod of small' in module.read_text()
    assert 'LmodError("channel prod of small' in module.with_suffix(".lua").read_text()
    assert 'module-version "ctrain-small/prod" "default"' in (module.parent / ".modulerc").read_text()
    assert problem in shop("list", stream="err")
    shop("catalogue")
    assert "channel prod of small" in (shop.root / "catalogue.html").read_text()
    shop("promote", "small", "dev", "prod")
    assert not module.exists()


def test_another_store_does_not_stand_in_for_a_dangling_channel(shop: Shop, tmp_path: Path) -> None:
    gone(shop)
    other = Shop(tmp_path / "other", shop.make, shop.capsys)
    other.publish("else", "prod")
    with pytest.raises(StoreError, match="channel prod of small"):
        resolve([open_store(shop.root), open_store(other.root)], "small")


def test_without_prod_the_newest(shop: Shop) -> None:
    shop("channel", "rm", "small", "prod", "--yes")
    assert resolve([open_store(shop.root)], "small").manifest.release == 3


def test_a_move_that_a_reader_sees_in_the_middle_is_no_dangling_channel(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """prod moves to r3 and r2 is retired, between reading the channels and reading the manifests."""
    store, read = open_store(shop.root), Store._manifest
    moved: list[str] = []

    def moving(self: Store, path: Path) -> object:
        if not moved:
            moved.append("now")
            shop("promote", "small", "1.0-s-r3", "prod")
            shop("retire", "small:1.0-s-r2", "--yes")
        return read(self, path)

    monkeypatch.setattr(Store, "_manifest", moving)
    found = select(store.scan(), "small")
    assert found and found.manifest.release == 3


def test_channels_that_cannot_be_listed_are_an_error(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory and one that cannot be read are not the same: prod would silently be the newest."""
    listed = Path.iterdir

    def fails(path: Path) -> object:
        if path.name == "channels":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", fails)
    with pytest.raises(StoreError, match=r"cannot list .*/channels: Permission denied"):
        resolve([open_store(shop.root)], "small")


def test_rollback_from_a_version_that_is_gone(shop: Shop) -> None:
    gone(shop)
    assert shop.data("rollback", "small", "prod") == {
        "name": "small",
        "channel": "prod",
        "before": "1.0-s-r2",
        "version": "1.0-s-r1",
        "done": True,
    }

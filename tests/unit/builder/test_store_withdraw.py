"""`ctrain store withdraw`: a version that leaks something is out of use at once, and users are told why."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.store import lifecycle
from ctrain_builder.store.publish import publish
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.errors import CtrainError, StoreError
from ctrain_runtime.store.manifest import Layer
from ctrain_runtime.store.references import resolve
from ctrain_runtime.store.store import open_store
from samples.crashes import run_until
from samples.shop import Shop

REASON = "contains a token"


def withdraw(shop: Shop) -> str:
    return shop("withdraw", "small:1.0-s-r2", "--why", REASON, "--yes")


def test_it_shows_first_what_it_would_do(shop: Shop) -> None:
    before = sorted(shop.root.rglob("*"))
    said = shop("withdraw", "small:1.0-s-r2", "--why", REASON)
    assert said.startswith("would withdraw small:1.0-s-r2\nsmall:prod is an error for users until")
    assert said.endswith("confirm with --yes\n")
    assert sorted(shop.root.rglob("*")) == before


def test_versions_that_have_its_topmost_layer_are_named(shop: Shop, tmp_path: Path) -> None:
    """What leaks in it leaks there, too: as in the same image, published again with a signature."""
    image = tmp_path / "image.sif"
    for content, layers in (("four", "ab"), ("five", "ac"), ("six", "db"), ("seven", "eb")):
        image.write_text(content)
        manifest = replace(shop.make(f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"), size=len(content))
        publish(
            image, replace(manifest, layers=tuple(Layer(one, one, 1, f"sha256:{one}") for one in layers)), shop.root
        )
    references = ("small:1.0-s-r4", "small:1.0-s-r7")
    assert "small:1.0-s-r6 has the topmost layer of" in shop("withdraw", *references, "--why", REASON)
    assert shop.data("withdraw", *references, "--why", REASON, "--yes")["relatives"] == ["small:1.0-s-r6"]
    assert shop.data("withdraw", "small:1.0-s-r6", "--why", REASON, "--yes")["relatives"] == []


def test_nobody_gets_it_and_users_are_told_why(shop: Shop) -> None:
    said = withdraw(shop)
    assert "small:prod is an error for users until it points to another version: ctrain store rollback" in said
    assert shop.versions == {1: (), 3: ("dev",)}
    for reference in ("small", "small:prod"):
        complaint = shop.ctrain("images", "show", reference, code=76)
        assert f"channel prod of small points to 1.0-s-r2: it was withdrawn: {REASON}" in complaint
    assert f"image 'small:1.0-s-r2' was withdrawn: {REASON}" in shop.ctrain("images", "show", "small:1.0-s-r2", code=68)
    link = shop.root / "channels/small_prod.sif"
    assert link.resolve().suffix != ".sif"  # plain apptainer does not run it either
    entry = shop.data("log")["entries"][-1]
    assert (entry["action"], entry["version"], entry["why"]) == ("withdraw", "1.0-s-r2", REASON)
    assert shop.data("rollback", "small", "prod")["version"] == "1.0-s-r1"
    assert shop.versions == {1: ("prod",), 3: ("dev",)}


def test_it_is_retired_so_that_its_file_goes_later(shop: Shop) -> None:
    withdraw(shop)
    assert shop("gc", "--yes") == "nothing to remove\n"
    shop("gc", "--grace", "0", "--yes")
    assert not shop.file(2).exists()
    assert f"was withdrawn: {REASON}" in shop("show", "small:1.0-s-r2", code=68)
    shop.publish("four")
    assert set(shop.versions) == {1, 3, 4}


def test_restored_it_is_what_it_was(shop: Shop) -> None:
    before = {path: path.read_bytes() for path in shop.root.glob("small*")}
    withdraw(shop)
    shop("restore", "small:1.0-s-r2")
    assert shop.versions == {1: (), 2: ("prod",), 3: ("dev",)}
    assert {path: path.read_bytes() for path in shop.root.glob("small*")} == before


def test_restored_it_takes_no_channel_back_that_was_moved(shop: Shop) -> None:
    withdraw(shop)
    shop("promote", "small", "dev", "prod")
    shop("restore", "small:1.0-s-r2")
    assert shop.versions == {1: (), 2: (), 3: ("dev", "prod")}


@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (("small:prod", "--why", "x"), 76, "'small:prod' is not NAME:VERSION. It currently resolves to small:1.0-s-r2"),
        (("small", "--why", "x"), 76, "'small' is not NAME:VERSION"),
        (("small:1.0-s-r7", "--why", "x"), 68, "not found in"),
        (("small:1.0-s-r2", "--why", " "), 64, "--why must not be empty"),
        (("small:1.0-s-r2",), 64, "--why"),
    ],
)
def test_what_is_not_withdrawn(shop: Shop, argv: tuple[str, ...], code: int, complaint: str) -> None:
    assert complaint in shop("withdraw", *argv, "--yes", code=code)
    assert set(shop.versions) == {1, 2, 3}


def test_a_reason_is_one_line_without_control_characters(shop: Shop) -> None:
    shop("withdraw", "small:1.0-s-r2", "--why", "first\nsecond \x1b[31mred", "--yes")
    assert "was withdrawn: first second [31mred" in shop("show", "small:1.0-s-r2")


def test_names_lead_to_no_file_outside(shop: Shop) -> None:
    (shop.root.parent / "secret_1-py3-r1.withdrawn").write_text("secret")
    for reference in ("../secret:1-r1", "small:../../secret_1-r1", "..:x-r1"):
        assert "secret\n" not in shop("show", f"./{reference}" if "/" not in reference else reference, code=None)


def test_it_does_not_come_back_under_another_number(shop: Shop) -> None:
    withdraw(shop)
    with pytest.raises(StoreError, match=f"this image was withdrawn: {REASON}.*ctrain store restore small:1.0-s-r2$"):
        shop.publish("two")
    shop("retire", "small:1.0-s-r1", "--yes")
    shop.publish("one")  # which was only retired
    assert set(shop.versions) == {3, 4}


def test_a_crash_at_any_step_offers_it_or_tells_why(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never another version in its place. Run again, it comes to its end."""
    before = shop.root.with_name("before")
    shutil.copytree(shop.root, before, symlinks=True)
    for number in itertools.count():
        shutil.rmtree(shop.root)
        shutil.copytree(before, shop.root, symlinks=True)
        if _withdraw_until(number, shop, monkeypatch):
            break
        try:
            assert resolve([open_store(shop.root)], "small").manifest.release == 2
            shop("withdraw", "small:1.0-s-r2", "--why", REASON, "--yes")
        except CtrainError as error:
            assert REASON in str(error)
            if 2 in shop.versions:
                shop("withdraw", "small:1.0-s-r2", "--why", REASON, "--yes")
        assert REASON in shop("show", "small", code=76)
        assert REASON in shop.ctrain("images", "show", "small:1.0-s-r2", code=68)
        assert shop.file(2).exists()
    assert number > 5


def _withdraw_until(number: int, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> bool:
    def withdraw() -> None:
        with lock_store(shop.root) as writer:
            lifecycle.withdraw(writer, ["small:1.0-s-r2"], REASON)

    return run_until(number, withdraw, monkeypatch)

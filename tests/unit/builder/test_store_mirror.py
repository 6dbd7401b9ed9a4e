"""A store that mirrors another one, and the hooks of its policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder.store import log
from ctrain_runtime.store import policy
from ctrain_runtime.store.manifest import Manifest
from samples.shop import Shop


@pytest.fixture
def mirror(shop: Shop, tmp_path: Path, make_manifest: Callable[..., Manifest]) -> Shop:
    other = Shop(tmp_path / "other", make_manifest, shop.capsys)
    (other.root / policy.FILE).write_text(f"mirror: {{source: {shop.root}, images: [small]}}\n")
    return other


def test_it_shows_first_what_it_would_do(shop: Shop, mirror: Shop) -> None:
    assert mirror("mirror").splitlines()[0] == "would have copied small 1.0-s-r1 (3 B)"
    assert mirror.versions == {}
    mirror("mirror", "--yes")
    assert mirror.versions == shop.versions


def test_retirements_and_withdrawals_follow(shop: Shop, mirror: Shop) -> None:
    mirror("mirror", "--yes")
    mirror("promote", "small:1.0-s-r3", "local")
    shop("promote", "small:1.0-s-r2", "dev")
    for number in (1, 3):
        shop("retire", f"small:1.0-s-r{number}", "--yes")
    said = mirror("mirror", stream="err")
    assert f"would have retired small:1.0-s-r1, as in {shop.root}\n" in said
    assert "confirm with --yes" in said
    assert mirror.versions == {1: (), 2: ("prod",), 3: ("dev", "local")}
    said = mirror("mirror", "--yes", stream="err")
    assert f"retired small:1.0-s-r1, as in {shop.root}\n" in said
    assert f"small:1.0-s-r3 is retired in {shop.root}, and stays: channel local" in said
    assert mirror.versions == {2: ("dev", "prod"), 3: ("local",)}
    shop("withdraw", "small:1.0-s-r2", "--why", "has a token", "--yes")
    said = mirror("mirror", "--yes", stream="err")
    assert f"{shop.root} no longer offers small\n" in said
    assert "withdrew small:1.0-s-r2: has a token" in said
    assert mirror.versions == {3: ("local",)}
    mirror("mirror", "--yes")  # as cron does each night
    assert "it was withdrawn: has a token" in mirror.ctrain("images", "show", "small", code=76)


def test_what_is_only_missing_in_the_source_stays(shop: Shop, mirror: Shop) -> None:
    """A disk that was not mounted, or a store that was made anew, retires nothing."""
    mirror("mirror", "--yes")
    for suffix in ("sif", "json"):
        shop.file(1, suffix).unlink()
    mirror("mirror", "--yes")
    assert 1 in mirror.versions
    (shop.root / "ctrain-store.json").unlink()
    mirror("mirror", "--yes", code=76)
    assert mirror.versions == {1: (), 2: ("prod",), 3: ("dev",)}


@pytest.mark.parametrize(
    ("image", "code"), [("small:1.0-s-r1", 0), ("small:dev", 0), ("smal", 68), ("small:nightly", 68)]
)
def test_what_the_source_no_longer_offers_is_no_mistake(shop: Shop, mirror: Shop, image: str, code: int) -> None:
    """What it never had is one."""
    (mirror.root / policy.FILE).write_text(f"mirror: {{source: {shop.root}, images: [{image}]}}\n")
    shop("retire", "small:1.0-s-r1", "--yes")
    shop("withdraw", "small:1.0-s-r3", "--why", "has a token", "--yes")
    for confirmed in ([], ["--yes"]):
        said = mirror("mirror", *confirmed, code=code, stream="err")
        assert (f"{shop.root} no longer offers {image}\n" in said) == (code == 0)
    assert mirror.versions == {}


def test_who_is_no_mirror_is_told_so(shop: Shop) -> None:
    assert "is not declared a mirror. Write to" in shop("mirror", code=76)
    (shop.root / policy.FILE).write_text(f"mirror: {{source: {shop.root}}}\n")
    assert "is declared a mirror of itself" in shop("mirror", code=64)


@pytest.fixture
def heard(shop: Shop, tmp_path: Path) -> Callable[[], list[str]]:
    """What the hooks of the shop were called for; a file `fail` makes them fail."""
    program, notes = tmp_path / "hook", tmp_path / "heard"
    program.write_text(
        f'#!/bin/sh\necho "$1 $CTRAIN_EVENT $CTRAIN_IMAGE $CTRAIN_CHANNEL" >> {notes}\n'
        f"[ ! -e {tmp_path}/fail ] || {{ echo no mail >&2; exit 3; }}\n"
    )
    program.chmod(0o755)
    events = ", ".join(f"{event}: [{program}, {event}]" for event in policy.EVENTS)
    (shop.root / policy.FILE).write_text(f"hooks: {{{events}}}\n")

    def lines() -> list[str]:
        text = notes.read_text() if notes.exists() else ""
        notes.unlink(missing_ok=True)
        return [line.strip() for line in text.splitlines()]

    return lines


def test_hooks_run_after_what_they_are_for(shop: Shop, heard: Callable[[], list[str]]) -> None:
    shop.publish("four", "beta")
    assert heard() == ["publish publish small:1.0-s-r4", "promote promote small:1.0-s-r4 beta"]
    shop("promote", "small:1.0-s-r4", "prod")
    shop("promote", "small:1.0-s-r4", "prod")
    assert heard() == ["promote promote small:1.0-s-r4 prod"], "the second changed nothing"
    shop("rollback", "small", "prod")
    assert heard() == ["promote promote small:1.0-s-r2 prod"]
    shop("withdraw", "small:1.0-s-r4", "--why", "x")
    assert heard() == []
    shop("withdraw", "small:1.0-s-r4", "--why", "x", "--yes")
    assert heard() == ["withdraw withdraw small:1.0-s-r4"]
    shop("retire", "small:1.0-s-r1", "--yes")
    assert heard() == []


@pytest.mark.usefixtures("heard")
def test_a_failed_hook_is_told_and_undoes_nothing(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    said = shop("promote", "small:1.0-s-r3", "prod", stream="err")
    assert (
        f"hook promote of {shop.root}/policy.yaml failed: {tmp_path}/hook ended with exit code 3: no mail; small"
        in said
    )
    assert shop.versions[3] == ("dev", "prod")
    last = list(log.read(shop.root))[-1]
    assert (last.action, last.version) == (log.HOOK_FAILED, "1.0-s-r3") and "no mail" in last.why
    assert shop.data("list", "--all")["versions"][2]["state"] == "published"
    (tmp_path / "hook").unlink()
    assert "cannot be started" in shop("promote", "small:1.0-s-r1", "prod", stream="err")
    shop("rollback", "small", "prod")
    assert shop.versions[3] == ("dev", "prod"), "the entry of a hook is no move"


def test_hooks_of_others_and_hooks_of_hooks_are_not_run(
    shop: Shop, heard: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.root / policy.FILE).chmod(0o666)
    said = shop("promote", "small:1.0-s-r3", "prod", stream="err")
    assert "hooks are not run: no command of " in said and heard() == []
    (shop.root / policy.FILE).chmod(0o644)
    monkeypatch.setenv("CTRAIN_EVENT", "promote")
    shop("promote", "small:1.0-s-r1", "prod")
    assert heard() == []


@pytest.mark.parametrize(
    "text", ["hooks: {retire: [x]}", "hooks: {publish: []}", "hooks: {publish: mail}", "mirror: {images: [x]}"]
)
def test_what_a_policy_may_not_say(shop: Shop, text: str) -> None:
    (shop.root / policy.FILE).write_text(text)
    assert "policy.yaml" in shop("promote", "small:1.0-s-r3", "prod", code=66)

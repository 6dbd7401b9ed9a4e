"""`ctrain store`: what becomes of published versions. The images are a few bytes long."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files.manifest_writer import utc
from ctrain_builder.store.init import init_store
from ctrain_runtime.base.text import user_name
from ctrain_runtime.cli.main import main
from ctrain_runtime.store import lease
from samples.shop import Shop


def test_looking(shop: Shop) -> None:
    assert [image["channels"] for image in shop.data("list")["images"]] == [[], ["prod"], ["dev"]]
    assert shop("list").splitlines()[2].split()[:3] == ["small", "1.0-s-r2", "prod"]
    assert shop.data("show", "small:dev")["version"] == "1.0-s-r3"
    assert "r3.sif is not a SIF image" in shop("diff", "small:dev", "small:prod", code=69)
    shop.file(3, "json").chmod(0o644)
    shop.file(3, "json").write_text("{")
    assert [image["channels"] for image in shop.data("list")["images"]] == [[], ["prod"]]


def test_promote(shop: Shop) -> None:
    assert shop("promote", "small", "1.0-s-r3", "prod") == "channel prod of small is 1.0-s-r3 (it was 1.0-s-r2)\n"
    assert shop("promote", "small", "dev", "prod") == "channel prod of small is 1.0-s-r3 (unchanged)\n"
    assert shop("promote", "small", "1.0-s-r1", "old") == "channel old of small is 1.0-s-r1 (it is new)\n"
    assert shop.versions == {1: ("old",), 2: (), 3: ("dev", "prod")}
    assert "not found in" in shop("promote", "small", "1.0-s-r9", "prod", code=68)
    assert "is not a channel name" in shop("promote", "small", "1.0-s-r1", "../x", code=64)


def test_rollback_goes_one_further_back_each_time(shop: Shop) -> None:
    shop("promote", "small", "1.0-s-r3", "prod")
    assert shop.data("rollback", "small", "prod") == {
        "name": "small",
        "channel": "prod",
        "before": "1.0-s-r3",
        "version": "1.0-s-r2",
        "done": True,
    }
    assert shop.data("rollback", "small", "prod")["version"] == "1.0-s-r1"
    complaint = shop("rollback", "small", "prod", code=76)
    assert "prod of small has had no earlier version. Choose a version" in complaint
    assert shop.versions == {1: ("prod",), 2: (), 3: ("dev",)}


def test_dry_run_moves_no_channel(shop: Shop) -> None:
    before = sorted(shop.root.rglob("*")), shop.data("log")
    said = shop("promote", "small", "1.0-s-r3", "prod", "--dry-run")
    assert said == "channel prod of small would be 1.0-s-r3 (it was 1.0-s-r2)\n"
    assert (
        shop("rollback", "small", "prod", "--dry-run") == "channel prod of small would be 1.0-s-r1 (it was 1.0-s-r2)\n"
    )
    assert (sorted(shop.root.rglob("*")), shop.data("log")) == before


@pytest.mark.parametrize("words", [("small:1.0-s-r3", "prod"), ("small", "1.0-s-r3", "prod")])
def test_a_version_is_one_word_or_two(shop: Shop, words: tuple[str, ...]) -> None:
    assert shop("promote", *words).startswith("channel prod of small is 1.0-s-r3")
    assert shop.data("show", *words[:-1])["version"] == "1.0-s-r3"
    other = ["small:1.0-s-r1"] if len(words) == 2 else ["small", "1.0-s-r1"]
    assert shop.data("retire", *other, "small", "1.0-s-r2", "--yes")["retired"] == ["small:1.0-s-r1", "small:1.0-s-r2"]
    assert shop("restore", *other, "--dry-run") == "small:1.0-s-r1 would be offered again\n"
    assert set(shop.versions) == {3}
    shop("restore", *other)
    assert set(shop.versions) == {1, 3}


def test_promote_without_a_channel(shop: Shop) -> None:
    assert "no channel given. As in: ctrain store promote small VERSION prod" in shop("promote", "small", "x", code=64)


def test_a_shown_digest_names_a_version(shop: Shop) -> None:
    shown = shop.data("show", "small:dev")["digest"][:19]
    for words in ((f"small@{shown}",), ("small", shown)):
        assert shop.data("show", *words)["version"] == "1.0-s-r3"
    assert "not found" in shop("show", f"small@{shown[:-1]}", code=68)


def test_retention_keeps_the_newest_and_what_is_needed(shop: Shop) -> None:
    for content in ("four", "five", "six"):
        shop.publish(content)
    lease.acquire(str(shop.root / "in-use" / f"{shop.file(1).name}@1"), "/runs/one")
    assert shop("retire", "--keep", "2", "small") == ("would retire small:1.0-s-r4 (4 B)\nconfirm with --yes\n")
    assert len(shop.versions) == 6
    assert shop.data("retire", "--keep", "2", "--yes")["retired"] == ["small:1.0-s-r4"]
    assert {image["version"] for image in shop.data("list")["images"]} == {
        *("1.0-s-r1", "1.0-s-r2", "1.0-s-r3", "1.0-s-r5", "1.0-s-r6"),
    }  # a job, prod, dev, and the newest two
    assert shop("retire", "--keep", "2") == "nothing to retire\n"
    assert "no image 'smal'. Did you mean 'small'?" in shop("retire", "--keep", "2", "smal", code=64)
    assert "no versions given" in shop("retire", code=64)
    assert "must be a positive integer" in shop("retire", "--keep", "0", code=64)


def test_retention_keeps_versions_of_each_tag(shop: Shop) -> None:
    """Those of an older tag were retired by newer releases of another one."""
    shop.publish("old", tag="0.9")
    for content in ("four", "five"):
        shop.publish(content)
    assert shop.data("retire", "--keep", "1", "--yes")["retired"] == ["small:1.0-s-r1", "small:1.0-s-r4"]
    assert "0.9-s-r1" in {image["version"] for image in shop.data("list")["images"]}


def test_versions_in_all_states_are_listed_and_counted(shop: Shop, tmp_path: Path) -> None:
    shop.publish("four")
    shop("retire", "small:1.0-s-r1", "--why", "too old", "--yes")
    shop("withdraw", "small:1.0-s-r2", "--why", "has a token", "--yes")
    shop.file(4).chmod(0o644)
    shop.file(4).write_text("bad")
    shop("verify", "--quarantine", "--yes", "--cache", str(tmp_path / "cache"), code=69)
    assert [(row["version"], row["state"], row["why"]) for row in shop.data("list", "--retired")["versions"]] == [
        ("1.0-s-r1", "retired", "too old"),
        ("1.0-s-r2", "withdrawn", "has a token"),
    ]
    (quarantined,) = shop.data("list", "--quarantined")["versions"]
    assert (quarantined["state"], quarantined["size"]) == ("quarantined", 3)
    assert "digest mismatch" in quarantined["why"]
    states = {"retired", "withdrawn", "published", "quarantined"}
    assert {row["state"] for row in shop.data("list", "--all")["versions"]} == states
    assert {row["state"] for row in shop.data("du")["versions"]} == states
    assert "in 4 files" in shop("du")
    shop("gc", "--yes", "--grace", "0")
    assert [row["state"] for row in shop.data("list", "--retired")["versions"]] == ["removed", "removed"]
    assert {row["state"] for row in shop.data("du")["versions"]} == {"published", "quarantined"}


def test_who_uses_a_version(shop: Shop) -> None:
    lease.acquire(str(shop.root / "in-use" / f"{shop.file(2).name}@1"), "/home/ada/runs/resnet50")
    shown = next(line for line in shop("show", "small").splitlines() if line.startswith("used by"))
    job = f"a job of {user_name(os.geteuid())} ({socket.gethostname()}:/home/ada/runs/resnet50)"
    assert shown.startswith(f"used by    {job}, until 2")
    assert shop.data("show", "small:prod")["used_by"][0]["run"].endswith(":/home/ada/runs/resnet50")
    assert shop.data("show", "small:dev")["used_by"] == []


def test_a_version_that_is_no_longer_offered_is_shown(shop: Shop, tmp_path: Path) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    first, second, *_ = shop("show", "small", "1.0-s-r1").splitlines()
    assert first == "small:1.0-s-r1 was retired" and second.startswith("image      small 1.0-s-r1  sha256:")
    assert shop.data("show", "small:1.0-s-r1")["path"] == str(shop.file(1))
    shop("withdraw", "small:1.0-s-r2", "--why", "has a token", "--yes")
    assert shop("show", "small:1.0-s-r2").startswith("small:1.0-s-r2 was withdrawn: has a token\nimage ")
    shop.file(3).chmod(0o644)
    shop.file(3).write_text("bad")
    shop("verify", "--quarantine", "--yes", "--force", "--cache", str(tmp_path / "cache"), code=69)
    assert shop("show", "small:1.0-s-r3").startswith("small:1.0-s-r3 is damaged and in quarantine\nimage ")
    assert "was withdrawn: has a token" in shop("show", "small:prod", code=76), "a channel leads nowhere"


def test_a_name_that_the_log_does_not_have(shop: Shop) -> None:
    assert "has no image 'smal'. Did you mean 'small'? Available: small" in shop("log", "smal", code=64)


def test_what_was_only_begun_is_no_place_to_go_back_to(shop: Shop) -> None:
    """The log is written first: here the third promotion died after that, in the middle of a line."""
    log = shop.root / "ctrain-store.log"
    last = log.read_text().splitlines()[-1]
    more = json.dumps({**json.loads(last), "channel": "prod", "version": "1.0-s-r3", "before": "1.0-s-r2"})
    log.write_text(f'{log.read_text()}{more}\n{{"when": "2026')
    assert shop.data("rollback", "small", "prod")["version"] == "1.0-s-r1"
    assert shop.data("log", "small")["entries"][-1]["action"] == "rollback"


def test_a_version_that_is_gone_is_no_place_to_go_back_to(shop: Shop) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    assert "its last one, 1.0-s-r1, is no longer published" in shop("rollback", "small", "prod", code=76)


def test_a_channel_that_never_was_cannot_be_rolled_back(shop: Shop) -> None:
    assert "smal has no channel 'prod' in" in shop("rollback", "smal", "prod", code=68)
    assert "Did you mean 'prod'? Channels of small: dev, prod" in shop("rollback", "small", "prdo", code=68)


def test_gc_leaves_what_a_job_needs(shop: Shop) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    ended, running = (shop.root / "in-use" / f"{shop.file(1).name}@{run}" for run in ("1", "2"))
    for path, until in ((ended, time.time() - 1), (running, time.time() + 3600)):
        path.touch()
        os.utime(path, (until, until))
    said = shop("gc", "--grace", "0", "--yes")
    assert said.startswith("nothing to remove\nkept small_1.0-s-py3-r1.sif: leased by a job of ")
    assert shop.file(1).exists() and running.exists() and not ended.exists()
    assert shop.data("gc")["needed"][0]["image"] == shop.file(1).name
    running.unlink()
    day = utc(shop.file(1, "json", "retired").stat().st_mtime)[:10]
    assert f"  retired {day}\n" in shop("gc", "--grace", "0", "--yes")
    assert not shop.file(1).exists()


def test_retire_shows_first_what_it_would_do(shop: Shop) -> None:
    assert shop("retire", "small:1.0-s-r1") == "would retire small:1.0-s-r1 (3 B)\nconfirm with --yes\n"
    assert set(shop.versions) == {1, 2, 3}
    assert shop("retire", "small:1.0-s-r1", "--why", "too old", "--yes").startswith("retired small:1.0-s-r1")
    assert set(shop.versions) == {2, 3}
    assert shop.file(1).read_text() == "one"  # for jobs that use it
    assert shop.data("log")["entries"][-1]["why"] == "too old"


@pytest.mark.parametrize(
    ("reference", "code", "complaint"),
    [
        ("small:1.0-s-r2", 76, "channel prod points to small 1.0-s-r2. First: ctrain store promote small VERSION prod"),
        ("small:dev", 76, "'small:dev' is not NAME:VERSION. It currently resolves to small:1.0-s-r3"),
        ("small", 76, "'small' is not NAME:VERSION"),
        ("small:1.0-s-r7", 68, "not found in"),
    ],
)
def test_what_is_not_retired(shop: Shop, reference: str, code: int, complaint: str) -> None:
    assert complaint in shop("retire", reference, "--yes", code=code)
    assert complaint in shop("retire", reference, code=code)
    assert set(shop.versions) == {1, 2, 3}


def test_restore(shop: Shop) -> None:
    before = shop.file(1, "json").read_text()
    published = "ctrain: small:1.0-s-r2 is published; nothing to restore\n"
    assert shop("restore", "small:1.0-s-r2", code=76) == published
    assert shop("restore", "small:1.0-s-r9", code=68).endswith("is called 'small:1.0-s-r9'. Available: none\n")
    shop("retire", "small:1.0-s-r1", "--yes")
    assert "Available: small:1.0-s-r1" in shop("restore", "small:1.0-s-r9", code=68)
    assert shop("restore", "small:1.0-s-r2", "--dry-run", code=76) == published
    assert shop("restore", "small:1.0-s-r1") == "small:1.0-s-r1 is offered again\n"
    assert set(shop.versions) == {1, 2, 3}
    assert shop.file(1, "json").read_text() == before
    assert list((shop.root / "retired").iterdir()) == []


def test_gc_keeps_what_was_retired_lately(shop: Shop) -> None:
    shop("retire", "small:1.0-s-r1", "--yes")
    assert shop("gc", "--yes") == "nothing to remove\n"
    retired = shop.file(1, "json", "retired")
    os.utime(retired, (0, retired.stat().st_mtime - 31 * 86400))
    said = shop("gc")
    day = utc(retired.stat().st_mtime)[:10]
    assert f"small_1.0-s-py3-r1.sif  3 B   retired {day}\n" in said
    assert said.endswith("\n1 file (3 B); confirm with --yes\n")
    assert shop.file(1).exists()
    assert shop("gc", "--yes").endswith("removed 1 file (3 B)\n")
    assert not shop.file(1).exists()
    assert shop.data("log")["entries"][-1]["action"] == "remove"
    (removed,) = shop.data("list", "--retired")["versions"]
    assert removed["why"] == f"retired {day}", "true on each later day, too"
    assert "small:1.0-s-r1 was removed" in shop("restore", "small:1.0-s-r1", code=76)


def test_a_number_is_never_given_again(shop: Shop) -> None:
    shop("promote", "small", "1.0-s-r2", "dev")
    shop("retire", "small:1.0-s-r3", "--yes")
    shop("gc", "--grace", "0", "--yes")
    shop.publish("four")
    assert set(shop.versions) == {1, 2, 4}


def test_gc_removes_what_crashes_have_left_and_nothing_else(shop: Shop) -> None:
    parts = [".small.sif.x1.part", ".small_1.0-s-py3-r4.json.part", ".small_1.0-s-py3-r2.json.77.part"]
    left = [shop.file(4), *(shop.root / name for name in (*parts, "channels/.small_prod.sif.77"))]
    foreign = ["README", ".nfs0001", "notes_of.txt", "channels/.nfs0001", ".download.part", "channels/.swp"]
    foreign += ["other_1.0-x-py3-r1.sif", "small_1.0-s-py3-r9.sif", "my.sif"]
    others = [shop.root / name for name in foreign]
    for path in (*left, *others):
        path.write_text("left")
    left.append(shop.root / "other_1.0-x-py3-r2.sif")
    left[-1].touch()
    assert {one["path"] for one in shop.data("gc")["files"]} == {str(path) for path in left}
    shop("gc", "--yes")
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)
    assert shop.versions == {1: (), 2: ("prod",), 3: ("dev",)}


def test_gc_never_removes_what_a_channel_means(shop: Shop) -> None:
    """Not even if somebody else has made it retired, by hand."""
    shop.file(2, "json").rename((shop.root / "channels").parent / "small_1.0-s-py3-r2.json.away")
    (shop.root / "retired").mkdir()
    shop.file(2, "json.away").rename(shop.file(2, "json", "retired"))
    assert shop("gc", "--grace", "0", "--yes") == "nothing to remove\n"
    assert shop.file(2).exists()


@pytest.mark.parametrize("days", ["-1", "soon", "nan", "inf"])
def test_a_grace_period_is_days(shop: Shop, days: str) -> None:
    assert "must be a number of days" in shop("gc", f"--grace={days}", code=64)


def test_the_log_tells_who_changed_what(shop: Shop) -> None:
    entries = shop.data("log")["entries"]
    assert [(entry["action"], entry["version"]) for entry in entries] == [
        *(("publish", "1.0-s-r1"), ("promote", "1.0-s-r1"), ("publish", "1.0-s-r2"), ("promote", "1.0-s-r2")),
        *(("publish", "1.0-s-r3"), ("promote", "1.0-s-r3")),
    ]
    assert all(entry["who"] and entry["host"] for entry in entries)
    head, *lines = shop("log", "small").splitlines()
    assert head.split() == ["when", "who", "what", "image", "channel", "from", "to", "why"]
    assert lines[3].split()[2:] == ["promote", "small", "prod", "1.0-s-r1", "1.0-s-r2"]


def test_a_log_that_is_lost_is_not_one_without_changes(shop: Shop, tmp_path: Path) -> None:
    log = shop.root / "ctrain-store.log"
    log.unlink()
    lost = f"ctrain: {log} is lost: what was changed is unknown. Restore it from a backup; the next change begins a new"
    assert lost in shop("log", code=76) and lost in shop("log", "small", "--json", code=76)
    unknown = "the earlier version of prod of small is unknown: the store's log is lost. Choose a version: ctrain store"
    assert unknown in shop("rollback", "small", "prod", code=76)
    shop.root = tmp_path / "new"
    init_store(shop.root)
    assert shop("log") == "no changes yet\n"


def test_sizes(shop: Shop) -> None:
    data = shop.data("du")
    assert [one["size"] for one in data["versions"]] == [3, 3, 5]
    assert shop("du").splitlines()[-1].startswith("11 B in 3 files")


def test_without_a_store(shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CTRAIN_STORE", raising=False)
    assert main(BUILD_VERBS, ["store", "log"]) == 64
    assert capsys.readouterr().err == "ctrain: no store named. Pass --store DIR or set CTRAIN_STORE\n"
    site = shop.root.with_name("ours.yaml")
    site.write_text("extends: local\nstores: [/apps/images]\n")
    monkeypatch.setenv("CTRAIN_SITE", str(site))
    assert main(BUILD_VERBS, ["store", "log"]) == 64, "what runs read is not written to unasked"
    assert capsys.readouterr().err == "ctrain: no store named. Pass --store /apps/images or set CTRAIN_STORE\n"
    assert not shop.root.with_name("x").exists()
    assert main(BUILD_VERBS, ["store", "log", "--store", str(shop.root.with_name("x"))]) == 76

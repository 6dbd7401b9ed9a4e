"""The policy of a store: what a version needs before a channel may point to it, and how long versions are offered."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files.manifest_writer import utc
from ctrain_builder.store import lifecycle, retention
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import ConfigError, GateNotPassed
from ctrain_runtime.images import trust
from ctrain_runtime.images.image import Image
from ctrain_runtime.run import select_image
from ctrain_runtime.store import lease, notes, policy
from ctrain_runtime.store.manifest import BASE_BUILT_LABEL, Manifest, checksum
from ctrain_runtime.store.policy import Retention
from ctrain_runtime.store.sif import SBOM
from ctrain_runtime.store.store import open_store
from samples.sample_images import sbom, sif
from samples.shop import Shop

DAY = 86400


def rules(shop: Shop, text: str) -> None:
    (shop.root / policy.FILE).write_text(text)


@pytest.fixture
def scanner(shop: Shop, tmp_path: Path) -> Callable[[int], None]:
    """scanner(CODE): the stand-in for a scanner ends with this code. It reads the package list, as real ones do."""
    program = tmp_path / "scanner"
    code = tmp_path / "code"
    program.write_text(f'#!/bin/sh\ngrep -q torch "$1" || exit 99\necho "1 package"; exit "$(cat {code})"\n')
    program.chmod(0o755)
    text = f"channels: {{prod: {{scan: true, scan_max_age: 30}}}}\nscanner: {{command: [{program}, '{{sbom}}'], "
    rules(shop, text + "clean: [0], findings: [1, 2]}\n")
    return lambda value: code.write_text(f"{value}\n") and None


@pytest.fixture
def listed(shop: Shop) -> None:
    """Version 4 has a package list."""
    shop.publish(sif(more=[(SBOM, sbom(torch="2.13.0"))]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("channel: {}", "policy.yaml: unknown key 'channel'. Did you mean 'channels'?"),
        ("channels: {prod: {test: true}}", "policy.yaml: channels.prod: unknown key 'test'. Did you mean 'tests'?"),
        ("channels: {prod: {tests: yes please}}", "channels.prod: tests must be a boolean, not a string"),
        ("channels: {prod: {base_max_age: 0}}", "base_max_age must be a positive number of days, not 0"),
        ("channels: {prod: {scan_max_age: 3}}", "scan_max_age without scan. Add: scan: true"),
        ("channels: {prod: {scan: true}}", "channels.prod: scan needs a scanner. Add: scanner: {"),
        ("channels: {a/b: {tests: true}}", "'a/b' is not a channel name"),
        ("scanner: {command: [grype], clean: [0], findings: [1]}", "scanner.command must have {sbom}"),
        ("scanner: {command: [trivy, '{sbom}'], clean: [1], findings: [0]}", "scanner.findings must not have 0"),
        ("scanner: {command: [trivy, '{sbom}'], clean: [0], findings: []}", "needs exit codes for clean and findings"),
        ("scanner: {command: [trivy, '{sbom}'], clean: [0, 1], findings: [1]}", "exit code 1 is both clean and find"),
        ("retention: {small: {}}", "retention.small keeps no version. Add newest, months or channels"),
        ("retention: {small: {newest: -1}}", "retention.small: newest must be a positive integer, not -1"),
        ("channels: [", "policy.yaml, line 1"),
    ],
)
def test_a_policy_that_cannot_be_read_lets_nothing_pass(shop: Shop, text: str, problem: str) -> None:
    rules(shop, text)
    with pytest.raises(ConfigError) as error:
        policy.load(shop.root)
    assert problem in str(error.value)
    shop("promote", "small:1.0-s-r3", "prod", code=66)
    assert shop.versions == {1: (), 2: ("prod",), 3: ("dev",)}
    shop("rollback", "small", "prod")
    assert shop.versions[1] == ("prod",), "what was before can always be had again"


def test_without_a_policy_nothing_is_asked(shop: Shop) -> None:
    shop("promote", "small:1.0-s-r3", "prod")


def test_tests_must_have_passed(shop: Shop) -> None:
    rules(shop, "channels: {prod: {tests: true}}")
    path = shop.file(3, "json")
    data = json.loads(path.read_text())
    path.chmod(0o644)

    del data["checksum"]
    data["tests"] = []
    path.write_text(json.dumps({**data, "checksum": checksum(data)}))
    for options in ((), ("--dry-run",)):
        said = shop("promote", "small:1.0-s-r3", "prod", *options, code=83)
        assert said.startswith(
            "ctrain: small:1.0-s-r3 does not pass the gates of channel prod: its tests have not passed"
        )
    shop("promote", "small:1.0-s-r3", "beta")
    shop("promote", "small:1.0-s-r1", "prod")


def test_one_of_the_keys_must_have_signed(shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = [tmp_path / "old.pub", tmp_path / "new.pub"]
    for key in keys:
        key.touch()
    rules(shop, f"channels: {{prod: {{signed_by: [{keys[0]}, {keys[1]}]}}}}")
    monkeypatch.setattr("ctrain_builder.store.gates.find_engine", lambda: None)
    monkeypatch.setattr(trust, "is_signed_by", lambda image, key, _: key == str(keys[1]) and "r3" in image.path.name)
    said = shop("promote", "small:1.0-s-r1", "prod", code=83)
    assert f"it is signed by none of {keys[0]}, {keys[1]}. Run: ctrain store sign small:1.0-s-r1 --key KEY" in said
    shop("promote", "small:1.0-s-r3", "prod")
    for key in keys:
        key.unlink()
    said = shop("promote", "small:1.0-s-r1", "prod", code=83)
    assert f"its signatures cannot be verified: file {keys[0]} not found" in said


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ({}, "when its base was built is unknown"),
        ({BASE_BUILT_LABEL: "yesterday"}, "when its base was built is unknown"),
        (
            {BASE_BUILT_LABEL: utc(time.time() - 40 * DAY)},
            "its base was built 40 days ago (at most 30). Run: ctrain build",
        ),
        ({BASE_BUILT_LABEL: utc(time.time() - 20 * DAY)}, ""),
    ],
)
def test_the_base_must_be_recent(shop: Shop, labels: dict[str, str], problem: str) -> None:
    rules(shop, "channels: {prod: {base_max_age: 30}}")
    shop.publish("four", labels=labels)
    said = shop("promote", "small:1.0-s-r4", "prod", code=83 if problem else 0)
    assert problem in said


@pytest.mark.usefixtures("listed")
def test_a_scanner_must_have_come_to_a_clean_end(shop: Shop, scanner: Callable[[int], None]) -> None:
    """No result, and a scanner that failed, are no clean ones."""
    promote = ("promote", "small:1.0-s-r4", "prod")
    assert "it was not scanned. Run: ctrain store scan small:1.0-s-r4" in shop(*promote, code=83)
    for code, exit_code, problem in (
        (1, 83, "its scan has findings. See: ctrain store show small:1.0-s-r4"),
        (3, 76, "its scan failed (exit code 3). Run: ctrain store scan small:1.0-s-r4"),
        (0, 0, ""),
    ):
        scanner(code)
        said = shop("scan", "small:1.0-s-r4", code=exit_code, stream="out")
        assert said.splitlines()[-1].split()[2] == str(code), said
        assert problem in shop(*promote, code=83 if problem else 0)
    assert shop.data("list")["images"][3]["scan"]["verdict"] == "clean"
    shop("catalogue")
    assert re.search('"scan": ?"clean on ', (shop.root / "catalogue.html").read_text())
    assert "scan       clean on " in shop("show", "small:1.0-s-r4")
    head, *rows = shop("list").splitlines()
    assert head.split()[-1] == "scan" and [row.split()[-1] for row in rows] == ["-", "-", "-", "clean"]


@pytest.mark.usefixtures("listed")
def test_an_old_a_damaged_and_anothers_scan_do_not_count(shop: Shop, scanner: Callable[[int], None]) -> None:
    scanner(0)
    shop("scan", "small:1.0-s-r4")
    path = notes.path_for(shop.file(4), notes.SCANS)
    whole = path.read_text()
    before = json.loads(whole)
    path.chmod(0o644)
    for text, problem in (
        (json.dumps({**before, "when": "2020-01-01T00:00:00Z"}), "its scan is older than 30 days"),
        (json.dumps({**before, "when": "soon"}), "its scan is older than 30 days"),
        (json.dumps({**before, "digest": "sha256:1"}), "it was not scanned"),
        (json.dumps({**before, "verdict": "fine"}), "its scan has findings"),
        ("{", "its scan is unknown: cannot read "),
        ("[]", "is damaged: not a JSON object"),
    ):
        path.write_text(text)
        assert problem in shop("promote", "small:1.0-s-r4", "prod", code=83)
    assert 4 in shop.versions, "a damaged note hides no version"
    path.write_text(whole)
    shop("promote", "small:1.0-s-r4", "prod")


def test_what_cannot_be_scanned_has_failed(shop: Shop, scanner: Callable[[int], None], tmp_path: Path) -> None:
    scanner(0)
    shop.publish(sif())
    said = shop("scan", code=76, stream="out")
    assert [line.split()[1] for line in said.splitlines()[1:]] == ["failed"] * 4
    assert "it has no package list" in said
    (tmp_path / "scanner").unlink()
    shop.publish(sif(more=[(SBOM, sbom(torch="2.13.0"))]))
    assert "cannot be started: No such file" in shop("scan", "small:1.0-s-r5", code=76, stream="out")
    assert "no image 'big'" in shop("scan", "big", code=64)


def test_a_policy_of_others_starts_no_command(shop: Shop, scanner: Callable[[int], None]) -> None:
    scanner(0)
    for mode in (0o664, 0o646):
        (shop.root / policy.FILE).chmod(mode)
        assert "is run: somebody else can write to it. chown it to root or yourself, and: chm" in shop("scan", code=66)
    rules(shop, "channels: {}")
    assert "has no scanner. Write to " in shop("scan", code=76)


def test_publishing_into_a_channel_passes_its_gates_too(shop: Shop, scanner: Callable[[int], None]) -> None:
    """It is scanned before; the verdict is kept whatever it is, and so is the version."""
    stays = "published, but channel prod stays: small:1.0-s-r{} does not pass the gates of channel prod: {}"
    then = "{}; then: ctrain store promote small:1.0-s-r{} prod"
    for number, code, problem, hint in (
        (4, 1, "its scan has findings", "See: ctrain store show small:1.0-s-r4"),
        (5, 3, "its scan failed (exit code 3)", "Run: ctrain store scan small:1.0-s-r5"),
    ):
        scanner(code)
        with pytest.raises(GateNotPassed) as error:
            shop.publish(sif(data=b"%d" % number, more=[(SBOM, sbom(torch="2.13.0"))]), "prod")
        assert error.value.message == stays.format(number, problem)
        assert error.value.hint == then.format(hint, number)
        assert shop.versions[2] == ("prod",) and shop.versions[number] == ()
        assert shop.data("list")["images"][number - 1]["scan"]["code"] == code
    scanner(0)
    shop.publish(sif(data=b"6", more=[(SBOM, sbom(torch="2.13.0"))]), "prod")
    assert shop.versions[6] == ("prod",)
    shop.publish(sif(data=b"5", more=[(SBOM, sbom(torch="2.13.0"))]), "prod")
    assert shop.versions[5] == ("prod",), "one that is there is scanned again, if its last scan does not do"


def test_publishing_scans_nothing_that_no_gate_asks_for(shop: Shop, scanner: Callable[[int], None]) -> None:
    scanner(0)
    shop.publish(sif(more=[(SBOM, sbom(torch="2.13.0"))]), "dev")
    assert not (shop.root / notes.SCANS).exists()
    shop("scan", "small:1.0-s-r4")
    scanner(1)
    shop.publish(sif(more=[(SBOM, sbom(torch="2.13.0"))]), "prod")
    assert shop.versions[4] == ("dev", "prod"), "its verdict is young enough"


def test_publishing_runs_no_scanner_that_others_have_named(shop: Shop, scanner: Callable[[int], None]) -> None:
    scanner(0)
    (shop.root / policy.FILE).chmod(0o666)
    with pytest.raises(GateNotPassed, match="it was not scanned"):
        shop.publish(sif(more=[(SBOM, sbom(torch="2.13.0"))]), "prod")
    assert 4 in shop.versions


def test_syncing_passes_the_gates_of_the_target(
    shop: Shop, tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> None:
    other = Shop(tmp_path / "other", make_manifest, shop.capsys)
    rules(other, "channels: {prod: {base_max_age: 30}}")
    assert main(BUILD_VERBS, ["store", "sync", str(shop.root), str(other.root), "--channels"]) == 83
    said = shop.capsys.readouterr().err
    assert "small:1.0-s-r2 does not pass the gates of channel prod: when its base was built is unknown" in said
    assert other.versions == {1: (), 2: (), 3: ("dev",)}
    rules(other, "channels: {prod: {base: 30}}")
    assert main(BUILD_VERBS, ["store", "sync", str(shop.root), str(other.root), "--channels"]) == 66


def test_a_deprecated_version_says_so(shop: Shop, tmp_path: Path) -> None:
    shop("catalogue")
    shop("modules", "--output", str(tmp_path / "modules"))
    argv = (
        "deprecate",
        "small:1.0-s-r2",
        "--until",
        "2999-03-31",
        "--use",
        "small:dev",
        "--reason",
        "has\x1b old NCCL",
    )
    assert "would be deprecated" in shop(*argv, "--dry-run")
    assert not (shop.root / notes.DEPRECATED).exists()
    assert shop(*argv).startswith("small:1.0-s-r2 is deprecated until 2999-03-31; afterwards: ctrain store retain")
    text = "small:1.0-s-r2 is deprecated and goes after 2999-03-31: has  old NCCL; use small:dev"
    assert text.partition(" and ")[2] in shop("show", "small:prod")
    assert text.partition(" ")[2] in (shop.root / "catalogue.html").read_text()
    for suffix in ("", ".lua"):
        assert text in (tmp_path / f"modules/ctrain-small/1.0-s-r2{suffix}").read_text()
    assert shop("list").splitlines()[2].split()[-1] == "2999-03-31"
    assert shop.data("log")["entries"][-1]["action"] == "deprecate"
    assert shop.data("list", "--all")["versions"][1]["state"] == "published"
    shop("deprecate", "small:1.0-s-r2", "--undo")
    assert "\ndeprecated" not in shop("show", "small:prod")
    assert "is not deprecated" in shop("deprecate", "small:1.0-s-r2", "--undo", code=76)


@pytest.mark.parametrize(
    ("argv", "code", "problem"),
    [
        (("--until", "2999-02-30", "--reason", "x"), 64, "must be a date such as 2027-03-31, not '2999-02-30'"),
        (
            ("--until", "2020-01-01", "--reason", "x"),
            64,
            "has passed. Take it out of use at once: ctrain store withdraw",
        ),
        (("--until", "2999-01-01"), 64, "--until and --reason are needed"),
        (("--until", "2999-01-01", "--reason", "x", "--use", "small:prod"), 64, "is small:1.0-s-r2 itself"),
        (("--until", "2999-01-01", "--reason", "x", "--use", "small:1.0-s-r9"), 68, "1.0-s-r9"),
    ],
)
def test_what_deprecates_nothing(shop: Shop, argv: tuple[str, ...], code: int, problem: str) -> None:
    assert problem in shop("deprecate", "small", "1.0-s-r2", *argv, code=code)


def test_a_channel_is_not_deprecated(shop: Shop) -> None:
    said = shop("deprecate", "small:prod", "--until", "2999-01-01", "--reason", "x", code=76)
    assert "'small:prod' is not NAME:VERSION. It currently resolves to small:1.0-s-r2" in said


def test_after_its_day_a_deprecated_version_is_retired(shop: Shop) -> None:
    for number in (1, 2):
        shop("deprecate", f"small:1.0-s-r{number}", "--until", "2999-01-01", "--reason", "old")
        path = notes.path_for(shop.file(number), notes.DEPRECATED)
        path.chmod(0o644)
        path.write_text(path.read_text().replace("2999", "2020"))
    said = shop("retain")
    assert said.splitlines() == [
        "would retire small:1.0-s-r1 (3 B): deprecated until 2020-01-01",
        "kept small:1.0-s-r2 (deprecated until 2020-01-01): channel prod",
        "confirm with --yes",
    ]
    assert shop.versions == {1: (), 2: ("prod",), 3: ("dev",)}
    shop("retain", "--yes")
    assert shop.versions == {2: ("prod",), 3: ("dev",)}


def test_a_deprecated_version_stays_on_its_last_day(shop: Shop) -> None:
    shop("deprecate", "small:1.0-s-r1", "--until", "2999-01-01", "--reason", "old")
    last = 32472144000.0  # 2999-01-01
    due = [retention.surplus(open_store(shop.root), {}, now) for now in (last + DAY - 1, last + DAY)]
    assert [[one.image.path for one in found] for found in due] == [[], [shop.file(1)]]


@pytest.mark.parametrize(
    ("rule", "retired"),
    [
        (Retention(newest=5), ()),  # more than there are: all stay
        (Retention(newest=3), ()),
        (Retention(newest=2), (1,)),
        (Retention(newest=1), (1, 4)),
        (Retention(months=1), (1, 4, 5)),
        (Retention(channels={"prod": 2}), (4, 5)),
        (Retention(channels={"prod": 1}), (1, 4, 5)),
        (Retention(newest=1, months=400), ()),
    ],
)
def test_what_a_rule_keeps(shop: Shop, rule: Retention, retired: tuple[int, ...]) -> None:
    """Channels keep 2 and 3; 1 was in prod; 4 and 5 are of another tag."""
    shop.publish("four", tag="2.0")
    shop.publish("five", tag="2.0")
    order = {("1.0", 1): 1, ("1.0", 2): 2, ("1.0", 3): 3, ("2.0", 1): 4, ("2.0", 2): 5}
    now = time.time() + (32 * DAY if rule.months else 0)
    found = retention.surplus(open_store(shop.root), {"*": rule}, now)
    assert [order[one.image.manifest.tag, one.image.manifest.release] for one in found] == list(retired)


def test_a_rule_is_of_its_image_and_spares_what_jobs_need(shop: Shop) -> None:
    shop.publish("four")
    rules(shop, "retention: {big: {newest: 1}}")
    assert shop("retain") == "nothing to retire\n"
    rules(shop, "retention: {'*': {newest: 1}}")
    assert shop.data("retain")["retired"] == [{"image": "small:1.0-s-r1", "why": "older than what the policy keeps"}]
    with lock_store(shop.root):
        name = f"{shop.file(1).name}@{'1' * 16}"
        note = shop.root / lease.LEASES / name
        note.write_text("host:/run")
        os.utime(note, (time.time() + DAY, time.time() + DAY))
    kept = shop.data("retain", "--yes")
    assert kept["retired"] == []
    assert kept["kept"][0]["image"] == "small:1.0-s-r1" and "host" in kept["kept"][0]["needed_by"][0]
    assert 1 in shop.versions


def test_a_negative_slice_retires_nothing(shop: Shop) -> None:
    images = open_store(shop.root).images()
    assert [len(lifecycle.older(images, newest)) for newest in range(6)] == [3, 2, 1, 0, 0, 0]


def test_a_run_says_that_its_image_is_deprecated(shop: Shop) -> None:
    shop("deprecate", "small:1.0-s-r2", "--until", "2999-03-31", "--reason", "old")
    [image] = [one for one in open_store(shop.root).images() if one.manifest.release == 2]
    found = Image(image.path, image.manifest)
    assert select_image._noted(found) == ("small:1.0-s-r2 is deprecated and goes after 2999-03-31: old",)
    path = notes.path_for(image.path, notes.DEPRECATED)
    path.chmod(0o644)
    path.write_text("?")
    assert select_image._noted(found)[0].startswith("whether small:1.0-s-r2 is deprecated is unknown: cannot read")
    other = replace(image.manifest, digest="sha256:1")
    path.unlink()
    assert select_image._noted(Image(image.path, other)) == ()

"""Who can change a store, and who says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.doctor import stores
from samples.sample_images import sif, write_image, write_store

STRANGER = 12099


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = write_store(tmp_path / "store")
    write_image(root, release=1)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o444)
    return root


def bytes_read() -> int:
    """By this process so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def told(root: Path) -> list[tuple[str, str]]:
    return [(finding.level, finding.text) for finding in stores.check_store(root)]


def test_a_store_that_only_its_keepers_can_change(root: Path) -> None:
    ((level, text),) = told(root)
    assert level == "ok"
    assert text.startswith("1 image; writable by ")


def test_a_policy_that_cannot_be_read(root: Path) -> None:
    rules = root / "policy.yaml"
    rules.write_text("channels: {prod: {test: true}}\n")
    rules.chmod(0o444)
    problem = f"{rules}: channels.prod: unknown key 'test'; no channel moves until then"
    assert told(root) == [("fail", problem)]
    rules.chmod(0o644)
    rules.write_text("channels: {prod: {tests: true}}\n")
    assert [level for level, _ in told(root)] == ["ok"]


def test_images_are_checked_by_small_reads(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = 1 << 34
    os.truncate(write_image(root, release=2, size=size), size)
    image = write_image(root, release=3, size=size)
    list(stores.check_store(root))  # modules are read once
    before = bytes_read()
    ((level, text),) = told(root)
    main(RUNTIME_VERBS, ["images", "--store", str(root)])
    assert bytes_read() - before < 1 << 20
    assert (level, text) == ("fail", f"size mismatch: {image} has {len(sif())} bytes, its manifest records {size}")
    assert "17.2 GB" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        *(".", "channels"),
        *("pytorch_24.12-hd-py3-r1.sif", "pytorch_24.12-hd-py3-r1.json"),
    ],
)
def test_what_everybody_can_write_is_named(root: Path, name: str) -> None:
    path = root / name
    path.chmod(path.stat().st_mode | 0o002)
    assert told(root) == [("fail", f"world-writable: {path}")]


def test_a_folder_above_that_everybody_can_write_is_named(root: Path) -> None:
    root.parent.chmod(0o777)
    assert told(root) == [("fail", f"world-writable: {root.parent}")]
    root.parent.chmod(0o1777)  # there nobody can rename the store
    assert told(root)[0][0] == "ok"


def test_leases_are_for_everybody_but_nobody_takes_anothers(root: Path) -> None:
    leases = root / "in-use"
    leases.mkdir()
    leases.chmod(0o1777)
    (leases / "pytorch_24.12-hd-py3-r1.sif@1").touch(0o666)
    assert told(root)[0][0] == "ok"
    leases.chmod(0o777)
    assert told(root) == [("fail", f"world-writable: {leases}")]


def test_what_belongs_to_a_stranger_is_named(root: Path) -> None:
    path = root / "pytorch_24.12-hd-py3-r1.sif"
    try:
        os.chown(path, STRANGER, -1)
    except OSError:
        pytest.skip("only root can give files away, and not in every container")
    assert told(root) == [("fail", f"not owned by a maintainer: {path}")]


def test_many_are_not_all_named(root: Path) -> None:
    for number in range(9):
        (root / f"note{number}").touch()
        (root / f"note{number}").chmod(0o666)
    assert told(root)[0][1].endswith("note4 and 4 more")


def test_the_verb(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["doctor", "--store", str(root)]) == 0
    assert f"store {root}  ok" in capsys.readouterr().out
    (root / "pytorch_24.12-hd-py3-r1.json").chmod(0o644)
    (root / "pytorch_24.12-hd-py3-r1.json").write_text("{")
    assert main(RUNTIME_VERBS, ["doctor", "--store", str(root), "--json"]) == 76
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["level"] == "fail" and "is not a manifest" in finding["text"]
    assert main(RUNTIME_VERBS, ["doctor", "--store", str(tmp_path / "none")]) == 76
    assert "does not exist" in capsys.readouterr().out


def test_a_site_without_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CTRAIN_STORE", raising=False)
    site = tmp_path / "bare.yaml"
    site.write_text("name: bare\nscheduler: local\n")
    main(RUNTIME_VERBS, ["doctor", "--site", str(site)])  # its code is that of this machine's engine, too
    assert "warn  site bare has no store configured" in capsys.readouterr().out

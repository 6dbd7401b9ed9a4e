"""`ctrain store sync` into a file and out of it; what hostile and damaged files can do: nothing."""

from __future__ import annotations

import io
import json
import resource
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Optional

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import main
from ctrain_runtime.store import notes, signatures
from ctrain_runtime.store.manifest import Manifest, checksum
from ctrain_runtime.store.store import open_store
from samples.sample_images import write_signature
from samples.shop import Shop

STEM = "small_1.0-s-py3-r2"


@pytest.fixture
def other(tmp_path: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]) -> Shop:
    """A store of another site, with nothing in it."""
    return Shop(tmp_path / "other", make_manifest, capsys)


def sync(shop: Shop, *argv: object, code: int = 0) -> str:
    assert main(BUILD_VERBS, ["store", "sync", *map(str, argv)]) == code
    output = shop.capsys.readouterr()
    return output.err if code else output.out


def test_versions_channels_and_signatures_travel_in_a_file(
    shop: Shop, other: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "keys", lambda _: ["A" * 40])  # that stand-ins name none
    [image] = [one for one in open_store(shop.root).images() if one.manifest.release == 2]
    signature = write_signature(image.path, image.manifest)
    file = tmp_path / "images.tar"
    assert (
        sync(shop, shop.root, file, "--dry-run", "--channels").splitlines()[0]
        == "would have copied small 1.0-s-r1 (3 B)"
    )
    assert not file.exists()
    sync(shop, shop.root, file, "--channels")
    assert [path.name for path in tmp_path.glob(".*")] == []
    said = sync(shop, file, other.root, "--channels")
    assert said.endswith("3 versions copied (11 B), 0 there already\n")
    assert other.versions == shop.versions
    for path in shop.root.glob("small*"):
        assert (other.root / path.name).read_bytes() == path.read_bytes()
    assert (other.root / "signatures" / signature.name).read_bytes() == signature.read_bytes()
    assert sync(shop, file, other.root).endswith("0 versions copied (0 B), 3 there already\n")


def note(shop: Shop, kind: str, number: int, **changes: object) -> Path:
    """Note a scan or a deprecation of a version."""
    digest = json.loads(shop.file(number, "json").read_text())["digest"]
    facts = {"verdict": "clean", "when": "2026-11-20T00:00:00Z", "code": 0, "scanner": ["grype"], "output": []}
    if kind == notes.DEPRECATED:
        facts = {"until": "2999-01-01", "reason": "old", "use": ""}
    path = notes.path_for(shop.file(number), kind)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"digest": digest, **facts, **changes}, indent=2) + "\n")
    return path


@pytest.mark.parametrize("through", ["", "images.tar"])
def test_what_is_noted_of_versions_travels_with_them(shop: Shop, other: Shop, tmp_path: Path, through: str) -> None:
    """Also of those that are there already; the later scan stays."""
    sync(shop, shop.root, other.root)
    kept = note(other, notes.SCANS, 1, when="2026-11-22T00:00:00Z").read_text()
    note(other, notes.SCANS, 2, verdict="failed", when="2026-11-19T00:00:00Z")
    note(other, notes.DEPRECATED, 3, reason="older")
    for number in (1, 2):
        note(shop, notes.SCANS, number)
    note(shop, notes.DEPRECATED, 3, reason="newer")
    source = shop.root
    if through:
        sync(shop, shop.root, source := tmp_path / through)
    for _ in range(2):
        sync(shop, source, other.root)
        assert notes.path_for(other.file(1), notes.SCANS).read_text() == kept
        for kind, number in ((notes.SCANS, 2), (notes.DEPRECATED, 3)):
            path = notes.path_for(other.file(number), kind)
            assert path.read_text() == notes.path_for(shop.file(number), kind).read_text()
    entries = [entry for entry in other.data("log")["entries"] if entry["action"] == "deprecate"]
    assert [(entry["version"], entry["why"]) for entry in entries] == [
        ("1.0-s-r3", f"until 2999-01-01: newer (from {source})")
    ]


@pytest.mark.parametrize(("text", "code"), [(b"{", 69), (b"[]", 69), (b'{"until": 3}', 69), (b"OTHER", 0)])
def test_a_note_that_is_none_keeps_no_version_back(
    shop: Shop, other: Shop, tmp_path: Path, text: bytes, code: int
) -> None:
    """One of another file is no note of this one."""
    path = note(shop, notes.SCANS, 2)
    if text == b"OTHER":
        text = json.dumps({**json.loads(path.read_text()), "digest": "sha256:1", "scanner": []}).encode()
    rewrite(shop, tmp_path / "images.tar", None, {f"scans/{STEM}.json": text})
    sync(shop, tmp_path / "images.tar", other.root, "--channels", code=code)
    assert other.versions == shop.versions
    assert not notes.path_for(other.file(2), notes.SCANS).exists()


def test_plain_tar_makes_a_store_of_it(shop: Shop, tmp_path: Path) -> None:
    file, place = tmp_path / "images.tar", tmp_path / "plain"
    sync(shop, shop.root, file, "small:prod", "--channels")
    place.mkdir()
    subprocess.run(["tar", "-xf", file, "-C", place], check=True)
    [image] = open_store(place).images()
    assert (image.manifest.version, image.channels) == ("1.0-s-r2", ("prod",))


def test_an_archive_is_written_once(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "images.tar"
    sync(shop, shop.root, file)
    before = file.read_bytes()
    assert "exists. An archive is written once" in sync(shop, shop.root, file, code=64)
    assert file.read_bytes() == before
    assert "not found. Write one with" in sync(shop, tmp_path / "away.tar", shop.root, code=64)
    assert "its directory does not exist" in sync(shop, shop.root, tmp_path / "no/images.tar", code=64)


def test_a_disk_that_takes_no_more_leaves_nothing(shop: Shop, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        said = sync(shop, shop.root, tmp_path / "images.tar", code=64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"cannot write {tmp_path}/images.tar: File too large. FAT has no files of 4 GB" in said
    assert list(tmp_path.glob("*images.tar*")) == []


def test_what_is_not_as_its_manifest_records_is_left_out(shop: Shop, other: Shop, tmp_path: Path) -> None:
    path, file = shop.file(2), tmp_path / "images.tar"
    path.chmod(0o644)
    path.write_text("TWO")
    assert "digest mismatch: the copy of small_1.0-s-py3-r2.sif" in sync(shop, shop.root, file, "--channels", code=69)
    sync(shop, file, other.root, "--channels")
    assert other.versions == {1: (), 3: ("dev",)}


@pytest.mark.parametrize("left", [0, 1, 511, 700, 1600, -1025, -2000])
def test_a_file_that_was_cut_short_gives_nothing(shop: Shop, other: Shop, tmp_path: Path, left: int) -> None:
    file = tmp_path / "images.tar"
    sync(shop, shop.root, file)
    file.write_bytes(file.read_bytes()[:left])
    assert "cut short" in sync(shop, file, other.root, code=69)
    assert other.versions == {}


def member(
    name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    about = tarfile.TarInfo(name)
    about.size, about.type, about.linkname = (len(data) if kind == tarfile.REGTYPE else 0), kind, link
    return about, data


@pytest.mark.parametrize(
    "added",
    [
        member("../outside"),
        member("/etc/outside"),
        member("a/../../outside_1.json"),
        member(f"{STEM}.sif"),  # a second one
        member("other_1-s-py3-r1.sif", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("other_1-s-py3-r1.sif", kind=tarfile.LNKTYPE, link=f"{STEM}.sif"),
        member("channels/small_beta.sif", kind=tarfile.SYMTYPE, link="../../outside_1.sif"),
        member("channels/small_beta.sif", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("device_1.sif", kind=tarfile.CHRTYPE),
        member("fifo_1.sif", kind=tarfile.FIFOTYPE),
        member("directory_1.sif", kind=tarfile.DIRTYPE),
        member("policy.yaml", b"hooks: {publish: [evil]}"),
        member("-rf_1.sif"),
    ],
    ids=lambda added: f"{added[0].name} {added[0].linkname}",
)
def test_a_hostile_file_is_refused(
    shop: Shop, other: Shop, tmp_path: Path, added: tuple[tarfile.TarInfo, bytes]
) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if other.root not in path.parents)
    rewrite(shop, tmp_path / "images.tar", added)
    said = sync(shop, tmp_path / "images.tar", other.root, code=69)
    assert "has a member that no archive of ctrain has: " in said
    assert other.versions == {}
    after = sorted(path for path in tmp_path.rglob("*") if other.root not in path.parents)
    assert after == sorted([*before, tmp_path / "images.tar"])


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"name": "big"}, "is the manifest of big_1.0-s-py3-r2.sif"),
        ({"name": "../small"}, "is the manifest of no version"),
        ({"release": 0}, "is the manifest of no version"),
        ({"size": 4}, "is missing, or not as large as its manifest records"),
    ],
)
def test_a_manifest_leads_nowhere(
    shop: Shop, other: Shop, tmp_path: Path, facts: dict[str, object], problem: str
) -> None:
    data = json.loads(shop.file(2, "json").read_text())
    del data["checksum"]
    data.update(facts)
    text = json.dumps({**data, "checksum": checksum(data)}).encode()
    rewrite(shop, tmp_path / "images.tar", None, {f"{STEM}.json": text})
    main(BUILD_VERBS, ["store", "sync", str(tmp_path / "images.tar"), str(other.root)])
    assert problem in shop.capsys.readouterr().err
    assert other.versions == {1: (), 3: ()}


def test_other_bytes_under_a_good_manifest_are_not_taken(shop: Shop, other: Shop, tmp_path: Path) -> None:
    rewrite(shop, tmp_path / "images.tar", None, {f"{STEM}.sif": b"TWO"})
    assert "digest mismatch" in sync(shop, tmp_path / "images.tar", other.root, code=69)
    assert other.versions == {1: (), 3: ()}


def rewrite(
    shop: Shop,
    file: Path,
    added: Optional[tuple[tarfile.TarInfo, bytes]],
    changed: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """An archive of the shop, with a member more, or with other contents of some."""
    good = file.with_name("good.tar")
    sync(shop, shop.root, good, "--channels")
    with tarfile.open(good) as source, tarfile.open(file, "w") as target:
        for one in source.getmembers():
            if added and one.name == "ctrain-archive.json":
                target.addfile(added[0], io.BytesIO(added[1]))
            held = source.extractfile(one) if one.isreg() else None
            content = changed.get(one.name, held.read() if held else b"")
            one.size = len(content)
            target.addfile(one, io.BytesIO(content))
    good.unlink()

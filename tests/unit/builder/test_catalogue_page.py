"""The web page of a store, without a browser: what is in it, what is not, and where it is written."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store import lifecycle
from ctrain_builder.store.views import catalogue_page
from ctrain_runtime.cli.main import main
from ctrain_runtime.store import lease, outputs
from ctrain_runtime.store.sif import SBOM
from ctrain_runtime.store.store import open_store
from samples.sample_images import sbom, sif, write_store


def a_store(root: Path, *versions: dict[str, Any]) -> Path:
    """A store with versions of pytorch 24.12, r1 first, that all have the same packages."""
    content = sif(more=[(SBOM, sbom(torch="2.6.0", deepspeed="0.19.8"))])
    numbered = [{"content": content, "release": at, **facts} for at, facts in enumerate(versions, 1)]
    return write_store(root, *numbered, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r1.sif"})


def page_of(root: Path) -> str:
    return catalogue_page.render(catalogue_page.load_entries(open_store(root)))


def data_of(page: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*)</script>', page)
    assert found
    return json.loads(found[1])


def test_what_the_page_knows(tmp_path: Path) -> None:
    data = data_of(page_of(a_store(tmp_path / "s", {}, {"signed": True})))
    assert data["packages"] == [["pypi", "deepspeed", "0.19.8"], ["pypi", "torch", "2.6.0"]]  # each once
    newer, older = data["versions"]
    assert [newer["version"], newer["channels"], newer["signed"]] == ["24.12-hd-r2", [], True]
    assert [older["version"], older["channels"], older["packages"]] == ["24.12-hd-r1", ["prod"], [0, 1]]
    assert older["layers"] == [["pytorch-ngc", 3, "3 B", "k0"], ["horovod", 2, "2 B", "k1"]]
    assert older["tests"] == [["imports", "passed", "1.2 s"]]
    assert older["commands"] == [
        f"ctrain run --nodes 2 --store {tmp_path}/s --image pytorch:24.12-hd-r1 -- python train.py",
        f"apptainer exec --nv {tmp_path}/s/pytorch_24.12-hd-py3-r1.sif python train.py",
    ]


def test_only_labels_that_say_something_new(tmp_path: Path) -> None:
    told = ("org.ctrain.key", "org.label-schema.build-date", "org.opencontainers.image.title", "maintainer")
    labels = {**dict.fromkeys(told, "x"), "org.opencontainers.image.description": "for training"}
    (version,) = data_of(page_of(a_store(tmp_path / "s", {"labels": labels})))["versions"]
    assert (version["labels"], version["description"]) == ({"maintainer": "x"}, "for training")


def test_paths_are_absolute_whatever_the_store_is_called(tmp_path: Path) -> None:
    a_store(tmp_path / "a store", {})
    (version,) = data_of(page_of(Path("a store")))["versions"]
    assert (
        version["commands"][1]
        == f"apptainer exec --nv '{tmp_path}/a store/pytorch_24.12-hd-py3-r1.sif' python train.py"
    )


def test_damaged_images_are_there_with_the_reason_and_damaged_manifests_are_named(tmp_path: Path) -> None:
    root = a_store(tmp_path / "s", {"content": b"no image"}, {"content": sif()}, {})
    (root / "pytorch_24.12-hd-py3-r3.json").write_text("{")
    page = page_of(root)
    assert [version["problem"].partition("sif ")[2] for version in data_of(page)["versions"]] == [
        "has no package list (built by an older ctrain)",
        "is not a SIF image",
    ]
    assert "<small class=failed>is not a SIF image</small>" in page
    assert f"<p class=problem>Left out: {root}/pytorch_24.12-hd-py3-r3.json is not a manifest" in page


HOSTILE = "</script><!-- <script> \"'&lt; {{ data }} \\u003c \ud800 \u2028"


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    software, labels = {HOSTILE: HOSTILE, "torch": HOSTILE}, {HOSTILE: HOSTILE}
    root = a_store(tmp_path / HOSTILE.replace("/", "").replace("\ud800", ""), {"software": software, "labels": labels})
    (root / "channels" / f"pytorch_{HOSTILE[2:-3]}.sif").symlink_to("../pytorch_24.12-hd-py3-r1.sif")
    page = page_of(root)
    (version,) = data_of(page)["versions"]
    assert (version["software"], version["labels"]) == (software, labels)
    plain = page_of(a_store(tmp_path / "plain", {"software": {}, "labels": {}}))
    tags = [re.findall(r"<(?:/?[a-z]|!--)", text) for text in (page, plain)]
    extra = ["<s", "</s"]  # one more badge
    assert sorted(tags[0]) == sorted([*tags[1], *extra])
    page.encode()


def test_the_page_allows_its_own_style_and_program_alone(tmp_path: Path) -> None:
    page = page_of(a_store(tmp_path / "s", {}))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules["default-src"] == "'none'"
    for name, start in (("style-src", "<style>"), ("script-src", "<script>")):
        text = page.partition(start)[2].partition(f"</{start[1:]}")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    addresses = re.findall(r"\b(?:https?:)?//[\w.-]+|url\(|@import|\bsrc=", page)
    assert addresses == []
    assert "innerHTML" not in page


def ctrain(*argv: str) -> int:
    return main(BUILD_VERBS, ["store", "catalogue", *argv])


@pytest.mark.parametrize(("mode", "wanted"), [(0o755, 0o444), (0o2770, 0o440), (0o2775, 0o444)])
def test_it_is_as_readable_as_the_store(tmp_path: Path, mode: int, wanted: int) -> None:
    root = a_store(tmp_path / "s", {})
    root.chmod(mode)
    before = sorted(path.name for path in root.iterdir())
    for _ in range(2):  # the second time, it replaces the first
        assert ctrain("--store", str(root)) == 0
    page = root / "catalogue.html"
    assert stat.S_IMODE(page.stat().st_mode) == wanted
    assert page.stat().st_gid == root.stat().st_gid
    left = sorted([*before, page.name, outputs.FILE, lease.LEASES])  # no log, no lock, no part
    assert sorted(path.name for path in root.iterdir()) == left


def test_it_is_in_nobodys_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = a_store(tmp_path / "s", {}, {})
    store, before = open_store(root), open_store(root).scan()
    assert ctrain("--store", str(root), "--json") == 0
    page = root / "catalogue.html"
    said = json.loads(capsys.readouterr().out)
    assert said == {"file": str(page), "versions": 2, "size": page.stat().st_size}
    assert store.scan() == before
    assert list(lifecycle.garbage(store, 0, 2e9)) == []


def test_it_can_be_written_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = a_store(tmp_path / "s", {})
    root.chmod(0o750)
    assert ctrain("--store", str(root), "--output", "page.html") == 0
    assert re.fullmatch(r"page\.html has 1 version \(.* kB\)\n", capsys.readouterr().out)
    assert stat.S_IMODE(Path("page.html").stat().st_mode) == 0o640
    assert not (root / "catalogue.html").exists()


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("nowhere/page.html", "No such file or directory"),
        ("s", "Is a directory"),
        ("s/ctrain-store.json/x", "Not a directory"),
    ],
)
def test_where_it_can_not_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, why: str) -> None:
    root = a_store(tmp_path / "s", {})
    assert ctrain("--store", str(root), "--output", output) == 64
    assert capsys.readouterr().err == f"ctrain: {output} can't be written: {why}. Name another file with --output\n"
    assert list(tmp_path.glob(".*")) == []

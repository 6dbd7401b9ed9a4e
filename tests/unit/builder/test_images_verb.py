from __future__ import annotations

import calendar
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_runtime.base import text
from ctrain_runtime.cli import images
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.store.manifest import Manifest


@pytest.fixture
def store(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> Path:
    image = tmp_path / "small.sif"
    image.write_text("image")
    init_store(tmp_path / "store")
    digest = "sha256:6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d"
    publish(image, make_manifest(digest), tmp_path / "store", "dev")
    return tmp_path / "store"


def test_the_table(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["images", "--store", str(store)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["image", "version", "channel", "age", "size", "torch", "CUDA", "fits", "tests", "signed"]
    name, version, channel, _, _, *rest = row.split()  # in between stands its age
    assert (name, version, channel, rest) == ("small", "1.0-s-r1", "dev", ["5", "B", "2.13.0", "-", "-", "1/1"])


def test_json_has_the_manifest_and_more(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRAIN_STORE", str(store))
    assert main(RUNTIME_VERBS, ["images", "--json"]) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert (image["version"], image["channels"], image["software"]["torch"]) == ("1.0-s-r1", ["dev"], "2.13.0")


def test_an_empty_store_is_one_line(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in store.glob("small*"):
        path.unlink()
    assert main(RUNTIME_VERBS, ["images", "--store", str(store)]) == 0
    assert "has no images;" in capsys.readouterr().out


def test_no_store_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("CTRAIN_STORE", raising=False)
    assert main(RUNTIME_VERBS, ["images"]) == 64
    hint = "Pass --store DIR or set CTRAIN_STORE; or make one: ctrain store init DIR"
    assert capsys.readouterr().err == f"ctrain: no store configured. {hint}\n"


@pytest.mark.parametrize(("seconds", "expected"), [(40, "40 s"), (725, "12 min"), (7300, "2 h"), (18_150_000, "210 d")])
def test_ages(seconds: int, expected: str) -> None:
    now = calendar.timegm((2026, 11, 21, 0, 0, 0)) + seconds
    assert images.format_age("2026-11-21T00:00:00Z", now) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (4096, "4.1 kB"),
        (72_206_731, "72.2 MB"),
        (621_879_296, "622 MB"),
        (96 * 10**8, "9.6 GB"),
    ],
)
def test_sizes(count: int, expected: str) -> None:
    assert text.format_size(count) == expected

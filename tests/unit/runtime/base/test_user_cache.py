from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest

from ctrain_runtime.base.user_cache import UserCache


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ctrain"


def test_an_answer_holds_under_its_conditions(cache_dir: Path) -> None:
    UserCache("engines").put("/usr/bin/apptainer", ["node1", 3], False)
    again = UserCache("engines")
    assert again.get("/usr/bin/apptainer", ["node1", 3]) is False
    assert again.get("/usr/bin/apptainer", ["node1", 4]) is None
    assert again.get("/opt/apptainer", ["node1", 3]) is None
    assert [path.name for path in cache_dir.iterdir()] == ["engines.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "[[1]]", '{"key": 7}', '{"key": [1, 2, 3]}', "\udcff"])
def test_a_damaged_cache_knows_nothing(cache_dir: Path, text: str) -> None:
    cache_dir.mkdir()
    (cache_dir / "x.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    cache = UserCache("x")
    assert cache.get("key", [1]) is None
    cache.put("key", [1], True)
    assert json.loads((cache_dir / "x.json").read_text())["key"] == [[1], True]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "ctrain").write_text("a file")
    cache = UserCache("x")
    cache.put("key", [], True)
    assert cache.get("key", []) is True
    assert UserCache("x").get("key", []) is None


def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a container or a directory service that fails: nothing is cached, and no directory is called ~."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: {}["nobody"])
    cache = UserCache("x")
    cache.put("key", [1], "value")
    assert cache.get("key", [1]) == "value"
    assert list(tmp_path.iterdir()) == []

"""Only directories that ctrain made are caches: no command fills, sweeps or clears another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrain_builder.cache import cache_root, cache_space
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import CACHE_MARKER, open_cache
from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import main
from ctrain_runtime.errors import BuildError
from samples.directories import content, fill

KEY = "64d6464bbe7e5fb790b23dc3d3ec4cd3c6d509ecfa729d9aa76fc45edc638835"
PROJECT = ("train.py", "tmp/data.bin", "tmp/tmpvqb08g2f/x", "logs/run.log", "inputs/a.json", "facts/f.json")


@pytest.mark.parametrize(
    "argv",
    [
        ("cache", "list"),
        ("cache", "du"),
        ("cache", "prune"),
        ("cache", "prune", "--yes"),
        ("cache", "clear"),
        ("cache", "clear", "--yes"),
        ("build", "--plan", "small"),
        ("build", "small"),
        ("test", "small"),
        ("upstream", "--offline"),
    ],
)
def test_a_directory_of_somebodys_is_no_cache(
    argv: tuple[str, ...], project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    before = fill(mine, *PROJECT)
    options = [] if argv[0] == "cache" else ["--definitions", str(project / "definitions")]
    assert main(BUILD_VERBS, [*argv, *options, "--cache", str(mine)]) == 77
    said = capsys.readouterr()
    assert content(mine) == before
    assert len(said.err.splitlines()) == 1
    assert f"{mine} is not a cache of ctrain: it has no {CACHE_MARKER} and is not empty (" in said.err
    assert "Pass --cache with a new or empty directory" in said.err


@pytest.mark.parametrize("action", [("list",), ("du",), ("list", "--json"), ("du", "--json"), ("prune",), ("clear",)])
@pytest.mark.parametrize("place", ["missing", "empty", "marked"])
def test_looking_writes_nothing(action: tuple[str, ...], place: str, tmp_path: Path) -> None:
    root = tmp_path / place
    {"missing": lambda _: None, "empty": Path.mkdir, "marked": open_cache}[place](root)
    before = content(tmp_path)
    assert main(BUILD_VERBS, ["cache", *action, "--cache", str(root)]) == 0
    assert content(tmp_path) == before


@pytest.mark.parametrize("action", ["prune", "clear"])
def test_what_is_missing_is_not_created_to_be_cleared(action: str, tmp_path: Path) -> None:
    assert main(BUILD_VERBS, ["cache", action, "--yes", "--cache", str(tmp_path / "missing")]) == 0
    assert not (tmp_path / "missing").exists()


def test_new_and_empty_directories_become_caches(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "disk/lost+found").mkdir(parents=True)
    for name in ("new", "a/b", "empty", "disk"):
        root = open_cache(tmp_path / name).root
        assert json.loads((root / CACHE_MARKER).read_text()) == {"layout": 1}
        (root / "mine").touch()
        open_cache(root)  # whatever else is in it later


def test_a_cache_without_its_marker_is_none(tmp_path: Path) -> None:
    root = open_cache(tmp_path / "cache").root
    (root / CACHE_MARKER).unlink()
    with pytest.raises(BuildError, match=r"is not a cache of ctrain: .* is not empty \(compiled\)"):
        open_cache(root)
    assert not (root / CACHE_MARKER).exists()


def test_a_directory_of_a_cache_that_is_a_link_is_refused(tmp_path: Path) -> None:
    root = open_cache(tmp_path / "cache").root
    (tmp_path / "mine").mkdir()
    (root / "tmp").rmdir()
    (root / "tmp").symlink_to(tmp_path / "mine")
    with pytest.raises(BuildError, match=r"cache .*: tmp is not a directory of its own"):
        open_cache(root)


def test_a_cache_of_a_newer_ctrain_is_refused(tmp_path: Path) -> None:
    root = open_cache(tmp_path / "cache").root
    (root / CACHE_MARKER).write_text('{"layout": 2}')
    with pytest.raises(BuildError, match=r"cache .* has layout 2.*Upgrade ctrain"):
        open_cache(root)


def test_two_that_open_a_new_cache_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second looks when the first has made the directory, and again when the marker has no text yet."""
    root = tmp_path / "cache"
    entries = cache_root._entries

    def after_another(directory: Path) -> list[str]:
        found = entries(directory)
        (root / CACHE_MARKER).touch()
        return found

    monkeypatch.setattr(cache_root, "_entries", after_another)
    assert open_cache(root) == Cache(root)
    assert open_cache(root) == Cache(root)


def test_clearing_takes_only_what_builds_have_made(cache: Cache) -> None:
    mine = ("layers/notes.sh", "layers/a/b.sif", "images/x.squash", "inputs/a/b.json", "logs/words", "space/mine")
    before = fill(cache.root, *mine)
    fill(cache.root, f"layers/{KEY}.sqsh", "images/a_1-s.sif", f"facts/{KEY}.json", "logs/a.log", "inputs/a.json")
    (cache.root / "layers/link.sif").symlink_to(cache.root)
    assert main(BUILD_VERBS, ["cache", "clear", "--yes", "--cache", str(cache.root)]) == 0
    with cache_space.reserve(cache, 1, "x"):
        pass
    (cache.root / "layers/link.sif").unlink()
    assert content(cache.root) == before

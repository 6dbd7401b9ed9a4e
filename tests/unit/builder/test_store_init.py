"""Stores are created by `ctrain store init` and by nothing else; and a lost marker file comes back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store import init as module
from ctrain_builder.store.init import init_store
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.errors import StoreError
from ctrain_runtime.store.store import open_store
from samples.sample_images import write_store

VERBS = [*RUNTIME_VERBS, *BUILD_VERBS]
Ctrain = Callable[..., str]


@pytest.fixture
def ctrain(capsys: pytest.CaptureFixture[str]) -> Ctrain:
    def run(*argv: object, code: int = 0) -> str:
        """What it prints; in case of an error, that."""
        assert main(VERBS, list(map(str, argv))) == code
        output = capsys.readouterr()
        return output.err if code else output.out

    return run


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_missing_or_empty_directory_becomes_a_store(ctrain: Ctrain, tmp_path: Path, umask: int) -> None:
    root, empty = tmp_path / "store", tmp_path / "empty"
    empty.mkdir(mode=0o750)
    before = os.umask(umask)
    try:
        assert ctrain("store", "init", root) == f"{root} is a store now\n"
        assert ctrain("store", "init", empty) == f"{empty} is a store now\n"
    finally:
        os.umask(before)
    assert [open_store(path).images() for path in (root, empty)] == [(), ()]
    modes = [path.stat().st_mode & 0o7777 for path in (root, root / "ctrain-store.json", empty)]
    assert modes == [0o755, 0o444, 0o750]
    assert ctrain("store", "init", root) == f"{root} is already a store\n"


def test_init_takes_no_other_directory(ctrain: Ctrain, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    for more in ((), ("--repair",)):
        complaint = ctrain("store", "init", foreign, *more, code=76)
        assert f"{foreign} is not empty and not a store (it has thesis.tex)" in complaint
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    deep = tmp_path / "typo" / "store"
    assert f"directory {deep.parent} does not exist. Run: mkdir -p {deep.parent}" in ctrain(
        "store", "init", deep, code=76
    )
    assert not deep.parent.exists()


@pytest.mark.parametrize("url", ["oras://h.example/lab", "https://h.example/x", "file:///tmp/x"])
@pytest.mark.parametrize(
    "argv",
    [
        *(("store", "init"), ("store", "log", "--store"), ("images", "--store"), ("doctor", "--store")),
        *(("run", "resnet50", "--site", "local", "--store"), ("publish", "small", "--store")),
    ],
)
def test_a_url_is_no_directory(ctrain: Ctrain, tmp_path: Path, argv: tuple[str, ...], url: str) -> None:
    assert f"a store must be a directory, not '{url}'" in ctrain(*argv, url, code=64)
    assert list(tmp_path.iterdir()) == []


def test_sync_creates_no_store(ctrain: Ctrain, tmp_path: Path) -> None:
    source = write_store(tmp_path / "source", {})
    for target in ("target", "typo/target"):
        for more in ((), ("--dry-run",)):
            hint = f"Create a store with: ctrain store init {tmp_path / target}"
            assert hint in ctrain("store", "sync", source, tmp_path / target, *more, code=76)
    assert "not 'https://h.example/x'" in ctrain("store", "sync", source, "https://h.example/x", code=64)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("text", [None, "", "{", "{}", "[1]"])
def test_a_lost_marker_comes_back(ctrain: Ctrain, tmp_path: Path, text: str) -> None:
    root = write_store(tmp_path / "store", {})
    marker = root / "ctrain-store.json"
    marker.unlink()
    if text is not None:
        marker.write_text(text)
    hint = f"If it is a store whose marker was lost: ctrain store init {root} --repair"
    assert hint in ctrain("images", "--store", root, code=76)
    assert hint in ctrain("store", "init", root, code=76)
    assert ctrain("store", "init", root, "--repair") == f"{root} is a store now\n"
    assert len(open_store(root).images()) == 1


def test_the_store_of_a_newer_ctrain_is_not_repaired(ctrain: Ctrain, tmp_path: Path) -> None:
    root = write_store(tmp_path / "store", {})
    (root / "ctrain-store.json").write_text('{"layout": 2}')
    assert "unsupported store layout 2" in ctrain("store", "init", root, "--repair", code=76)
    assert (root / "ctrain-store.json").read_text() == '{"layout": 2}'


def test_a_marker_that_cannot_be_read_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_store(tmp_path / "store", {})

    def fails(*_: object, **__: object) -> str:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", fails)
        with pytest.raises(StoreError, match=r"cannot read .*: Input/output error"):
            init_store(root, repair=True)
    assert open_store(root).images()


def test_two_who_initialise_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    root.mkdir()
    create = module._others

    def other_first(path: Path) -> list[str]:
        monkeypatch.undo()
        assert init_store(root)
        (root / ".ctrain-store.lock").touch()
        return create(path)

    monkeypatch.setattr(module, "_others", other_first)
    init_store(root)
    assert open_store(root).images() == ()
    shutil.rmtree(root)

"""What `ctrain doctor` and `ctrain images` notice without reading an image."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.doctor import contents
from ctrain_runtime.store.store import open_store
from samples.sample_images import write_image, write_store

R1, R2 = "pytorch_24.12-hd-py3-r1", "pytorch_24.12-hd-py3-r2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """r2 is prod; r1 was retired."""
    root = write_store(tmp_path / "store", {"release": 1}, {"release": 2}, channels={"pytorch_prod": f"{R2}.sif"})
    (root / "retired").mkdir()
    (root / f"{R1}.json").rename(root / "retired" / f"{R1}.json")
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def truncated(root: Path) -> str:
    (root / f"{R2}.sif").write_bytes(b"SIF")
    return f"size mismatch: {root}/{R2}.sif has 3 bytes, its manifest records "


def without_manifest(root: Path) -> str:
    (root / "channels/pytorch_prod.sif").unlink()
    (root / f"{R2}.json").unlink()
    return f"{root}/{R2}.sif has no manifest"


def without_image(root: Path) -> str:
    (root / f"{R2}.sif").unlink()
    return f"{root}/{R2}.sif is missing or not a regular file"


def foreign(root: Path) -> str:
    (root / "other_1.0-x-py3-r1.sif").write_bytes(b"somebody's")
    return f"{root}/other_1.0-x-py3-r1.sif has no manifest"


def outside(root: Path) -> str:
    (root / "channels/pytorch_dev.sif").symlink_to("../../secret.sif")
    return "channel dev of pytorch is not a symlink to an image in the store"


def dangling(root: Path) -> str:
    (root / "channels/pytorch_dev.sif").symlink_to(f"../{R1}.sif")
    return "channel dev of pytorch points to 24.12-hd-r1: it was retired"


def corrupt_retired(root: Path) -> str:
    (root / "retired" / f"{R1}.json").write_text("{")
    return f"{root}/retired/{R1}.json is not a manifest"


FAILURES = [truncated, without_manifest, without_image, foreign, outside, dangling, corrupt_retired]


def test_a_store_in_order(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(root)
    assert list(contents.check_contents(store, store.scan())) == []
    assert main(RUNTIME_VERBS, ["images", "--store", str(root)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("spoil", FAILURES)
def test_what_is_wrong_is_told_by_both(
    root: Path, spoil: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    problem = spoil(root)
    assert main(RUNTIME_VERBS, ["doctor", "--store", str(root)]) == 76
    assert problem in capsys.readouterr().out
    assert main(RUNTIME_VERBS, ["images", "--store", str(root)]) == 0
    assert f"ctrain: {problem}" in capsys.readouterr().err


def test_a_channel_called_like_a_version(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "channels/pytorch_24.12-hd-r1.sif").symlink_to(f"../{R2}.sif")
    assert main(RUNTIME_VERBS, ["doctor", "--store", str(root)]) == 0
    said = capsys.readouterr().out
    assert "warn  channel 24.12-hd-r1 of pytorch looks like a version" in said
    assert "ctrain store channel rm pytorch 24.12-hd-r1" in said


@pytest.mark.parametrize("kind", ["newer", "EIO"])
def test_a_retired_manifest_that_cannot_be_read_is_only_a_warning(
    root: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / "retired" / f"{R1}.json"
    if kind == "newer":
        path.write_text('{"schema": 99}')
    read = Path.read_bytes

    def fails(self: Path) -> bytes:
        if self == path and kind == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", fails)
    assert main(RUNTIME_VERBS, ["doctor", "--store", str(root)]) == 0
    assert "  warn  " in capsys.readouterr().out


def test_users_are_told_of_failures_only(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning is for those who can write to the store."""
    problem = truncated(root)
    (root / "channels/pytorch_24.12-hd-r1.sif").symlink_to(f"../{R2}.sif")
    for writable in (True, False):
        monkeypatch.setattr(os, "access", lambda *_, answer=writable: answer)
        assert main(RUNTIME_VERBS, ["images", "--store", str(root)]) == 0
        said = capsys.readouterr().err
        assert problem in said
        assert ("looks like a version" in said) is writable


@pytest.mark.parametrize("directory", ["channels", "retired", "store"])
def test_a_directory_that_cannot_be_listed(
    root: Path, directory: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def fails(path: Path) -> object:
        if path.name == directory:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", fails)
    assert main(RUNTIME_VERBS, ["doctor", "--store", str(root)]) == 76
    assert f"{directory}: Stale file handle" in capsys.readouterr().out
    code = 0 if directory == "retired" else 76  # users can list images all the same
    assert main(RUNTIME_VERBS, ["images", "--store", str(root)]) == code
    assert f"{directory}: Stale file handle" in capsys.readouterr().err


def test_a_name_that_a_publish_has_just_taken_is_no_problem(root: Path) -> None:
    """Its .sif is empty until its pending manifest exists."""
    (root / "small_1.0-s-py3-r7.sif").touch()
    assert list(contents.check_contents(open_store(root), open_store(root).scan())) == []


def test_a_version_that_is_being_published_has_its_manifest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pending one; and it gets its final name while this looks."""
    new = write_image(root, release=3)
    pending = root / f".{new.stem}.json.part"
    new.with_suffix(".json").rename(pending)
    store = open_store(root)
    assert list(contents.check_contents(store, store.scan())) == []
    has_none = contents._has_no_manifest

    def published_meanwhile(path: Path) -> bool:
        if path == new and pending.exists():
            pending.rename(new.with_suffix(".json"))
            return True
        return has_none(path)

    monkeypatch.setattr(contents, "_has_no_manifest", published_meanwhile)
    assert list(contents.check_contents(store, store.scan())) == []

"""A copy into a store that takes long, here stopped in its middle: nobody waits for it, and nobody removes it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files import locks
from ctrain_builder.store import channels, lifecycle, log
from ctrain_builder.store.endpoints import StoreEndpoint
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import CopyObserver, publish
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.base import file_systems
from ctrain_runtime.cli.main import main
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.store import Store, open_store

Copy = Callable[[str, CopyObserver], None]


def stop_at_first(_: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(params=["", "localflock", "flock"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with two versions in prod, the first one earlier; also on Lustre, mounted with an option."""
    root = tmp_path / "store"
    init_store(root)
    if request.param:
        table = tmp_path / "mounts"
        table.write_text(f"40 22 0:40 / {root} rw - lustre 10.0.0.1@tcp:/x rw,{request.param}\n")
        monkeypatch.setattr(file_systems, "_TABLE", table)
    return open_store(root)


@pytest.fixture(params=["publish", "sync"])
def copy(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> Iterator[Copy]:
    """copy(content, watch): brings a version with this content to the store, from the cache or from another store."""
    other = tmp_path / "other"
    init_store(other)

    def call(content: str, watch: CopyObserver) -> None:
        image = tmp_path / "small.sif"
        image.write_text(content)
        digest = f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
        manifest = replace(make_manifest(digest), size=len(content))
        if request.param == "publish":
            publish(image, manifest, store.root, "", watch)
        else:
            published = publish(image, manifest, other).image.manifest
            StoreEndpoint(store.root).put(published, StoreEndpoint(other), watch)

    yield call


@pytest.fixture
def stopped(store: Store, copy: Copy) -> Iterator[int]:
    """The process of a copy, stopped in its middle; there are two versions, and prod has been both."""
    silent = CopyObserver(lambda _: None, lambda _: None)
    for content in ("one", "two"):
        copy(content, silent)
    with lock_store(store.root) as writer:
        for image in store.images():
            channels.point(writer, "prod", image, log.PROMOTE)
    process = os.fork()
    if not process:
        code = 1
        try:
            copy("three", CopyObserver(lambda _: None, stop_at_first))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(process, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    yield process
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)  # raises if it was waited for
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def parts(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.glob(".*.part*"))


def in_prod(store: Store) -> str:
    return next(image.manifest.version for image in store.images() if "prod" in image.channels)


def test_nobody_waits_for_a_copy_and_gc_keeps_it(store: Store, stopped: int) -> None:
    """None of this would return if the store's lock were held."""
    copying = parts(store)
    with lock_store(store.root) as writer:
        channels.point(writer, "prod", channels.earlier_version(store, "small", "prod"), log.ROLLBACK)
        assert in_prod(store) == "1.0-s-r1"
        lifecycle.retire(writer, ["small:1.0-s-r2"])
        removed = lifecycle.collect(writer, 0)
    assert [one.path.name for one in removed] == ["small_1.0-s-py3-r2.sif"]
    assert parts(store) == copying != []
    os.kill(stopped, signal.SIGCONT)
    assert os.waitpid(stopped, 0)[1] == 0
    assert [image.path.read_text() for image in store.images()] == ["one", "three"]
    assert parts(store) == []


def test_what_a_killed_copy_has_left_is_removed(store: Store, stopped: int) -> None:
    os.kill(stopped, signal.SIGKILL)
    os.waitpid(stopped, 0)
    assert parts(store) != []
    with lock_store(store.root) as writer:
        lifecycle.collect(writer, 30)
    assert parts(store) == []
    assert [image.path.read_text() for image in store.images()] == ["one", "two"]


def test_gc_of_another_machine_keeps_a_copy(
    store: Store, stopped: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not see the process, and where its locks don't reach that machine, nothing else either."""
    copying = parts(store)
    monkeypatch.setattr(locks, "_machine", lambda: "another of the same name")
    assert list(lifecycle.garbage(store, 0, 0)) == []
    with lock_store(store.root) as writer:
        lifecycle.collect(writer, 0)
    assert parts(store) == copying
    capsys.readouterr()
    assert main(BUILD_VERBS, ["store", "gc", "--store", str(store.root)]) == 0
    assert re.search(rf"\.part: pid {stopped} \(.*\) may still be writing it\n$", capsys.readouterr().out)
    os.kill(stopped, signal.SIGCONT)
    assert os.waitpid(stopped, 0)[1] == 0

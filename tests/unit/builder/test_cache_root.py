from __future__ import annotations

import codecs
import errno
import fcntl
import functools
import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctrain_builder.cache import cache_root, cache_space, eviction
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import find_cache, open_cache, require_overlays
from ctrain_builder.plan.layer_key import LayerInputs
from ctrain_runtime.base import file_systems
from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import BuildError

INPUTS = LayerInputs("parent", "", "amd64", {"A": "1"}, ("%post", "  x"), {"a/b": "644 0f"})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "cache")


def test_a_new_cache_is_private(cache: Cache) -> None:
    assert cache.root.stat().st_mode & 0o777 == 0o700
    assert open_cache(cache.root) == cache


def test_a_cache_that_others_could_have_prepared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name, why in (("link", "it is a symlink"), ("open", "others can write to it")):
        with pytest.raises(BuildError, match=rf"^unsafe cache {tmp_path / name}: {why}\. Pass --cache DIR"):
            open_cache(tmp_path / name)
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=f"unsafe cache {tmp_path / 'file'}: it is not a directory"):
        find_cache(tmp_path / "file")


def test_a_cache_of_another_user_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_cache(tmp_path / "cache")
    owner = user_name(os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(
        BuildError, match=f": it belongs to {owner}, and is not shared with a group of yours. Pass --cache DIR"
    ):
        open_cache(tmp_path / "cache")


def test_a_cache_where_nothing_can_be_locked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no)
    with pytest.raises(BuildError, match=r"is on a file system without locks\. Choose another directory"):
        open_cache(tmp_path / "cache")


@pytest.mark.parametrize(("option", "refused"), [("flock", False), ("localflock", True)])
def test_a_cache_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, refused: bool
) -> None:
    (tmp_path / "mounts").write_text(f"40 22 0:40 / {tmp_path} rw - lustre 10.0.0.1@tcp:/x rw,{option}\n")
    monkeypatch.setattr(file_systems, "_TABLE", tmp_path / "mounts")
    monkeypatch.setattr("socket.gethostname", lambda: "login01")
    for _ in range(2):
        open_cache(tmp_path / "cache")
    monkeypatch.setattr("socket.gethostname", lambda: "login02")
    if refused:
        with pytest.raises(BuildError, match=r"is that of login01, and locks .* do not reach login02\. Choose another"):
            open_cache(tmp_path / "cache")
    else:
        open_cache(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["nfs4", "lustre"])
def test_a_file_system_that_holds_no_overlay_is_refused_at_once(
    kind: str, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_overlays(cache)
    monkeypatch.setattr(cache_root, "mount_of", lambda _: file_systems.Mount(kind, frozenset()))
    with pytest.raises(BuildError, match=f"no layer can be built in cache .*: {kind} cannot hold a writable overlay"):
        require_overlays(cache)


def test_a_cache_mounted_noexec_is_refused_at_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    told = os.statvfs(cache.root)
    fields = [*told[:8], os.ST_NOEXEC, told[9]]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))
    with pytest.raises(BuildError, match="it is mounted with noexec"):
        require_overlays(cache)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory for a cache of group 4321. Not of pytest's, which are root's alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    root = folder / "cache"
    root.mkdir()
    try:
        os.chown(root, -1, 4321)
    except OSError:
        pytest.skip("only root can give files to a group, and only to one that its user namespace has")
    root.chmod(0o2770)
    yield root
    shutil.rmtree(folder)


def as_user(uid: int, work: Callable[[], object]) -> int:
    """The exit code of a process of this user, who is in group 4321: 0 if `work` is true."""
    codecs.lookup("ascii")  # of a module, and Python's own modules may be where only root can read
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([4321])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o022)
            code = 0 if work() else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: this takes two users")
def test_users_of_a_group_share_a_cache(shared: Path) -> None:
    def build() -> bool:
        cache = open_cache(shared)
        with cache.work.create() as work, cache.locks.hold("layer"), cache_space.reserve(cache, 1, "x"):
            (work / "made").write_bytes(b"layer")
            cache.layers.add(work / "made", cache.layers.path("key", False), "")
        cache.files.new_log("x")
        cache.memory.keep_fact("f", {"a": 1})
        tempfile.mkdtemp(prefix="ctrain-build-", dir=shared / "tmp")  # as a killed build leaves it
        (shared / "space/d73319ac0006390b").write_text("5")
        (shared / "space/d73319ac0006390b").chmod(0o664)
        return True

    def use() -> bool:
        cache = open_cache(shared)
        left = cache.work.sweep()
        with cache.locks.use(cache.layers.path("key", False)) as there, cache_space.reserve(cache, 1, "x"):
            found = there and cache.layers.content("key", False).size == 5 and cache.memory.fact("f") == {"a": 1}
        cache.files.new_log("x").write_text("mine")
        cache.memory.keep_fact("f", {"a": 2})
        return found and left == [] and eviction.evict(cache, 0) == 0 and not cache.layers.path("key", False).exists()

    assert as_user(12345, build) == 0
    assert as_user(12346, use) == 0
    assert as_user(12345, lambda: open_cache(shared).memory.fact("f") == {"a": 2}) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="not root: this takes another user")
def test_a_cache_of_another_group_or_for_everybody_is_refused(shared: Path) -> None:
    def refused(why: str) -> bool:
        with pytest.raises(BuildError, match=f"{why}. Pass --cache DIR; to share one with a group: chgrp GROUP DIR"):
            open_cache(shared)
        return True

    not_shared = functools.partial(refused, "it belongs to root, and is not shared with a group of yours")
    os.chown(shared, -1, 4322)
    assert as_user(12345, not_shared) == 0
    os.chown(shared, -1, 4321)
    shared.chmod(0o2777)
    assert as_user(12345, functools.partial(refused, "others can write to it")) == 0
    shared.chmod(0o770)  # new files would not belong to the group
    assert as_user(12345, not_shared) == 0


def test_the_place_that_nobody_has_chosen_is_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_root, "_PRIVATE_ROOT", f"{tmp_path}/cache-{{}}")
    root = tmp_path / f"cache-{os.geteuid()}"
    root.mkdir()
    root.chmod(0o2770)
    with pytest.raises(BuildError, match="others can write to it"):
        open_cache(root)
    other = tmp_path / "chosen"
    other.mkdir()
    other.chmod(0o2770)
    assert open_cache(other).locks.is_shared

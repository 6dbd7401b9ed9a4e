"""Stores on real file systems: killed, full, read-only, lost, shared by users, and written to and read by many at once.

Writers are forked and not started: so a kill hits the publishing, and not Python's start. The images are SIFs of the
real engine with partitions of random bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from ctrain_builder.files import manifest_writer
from ctrain_builder.store import lifecycle, usage
from ctrain_builder.store import verify as checks
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import CopyObserver, publish
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.doctor.contents import check_contents
from ctrain_runtime.errors import DiskFullError, StoreError
from ctrain_runtime.store.manifest import SCHEMA, Manifest, checksum, read_manifest
from ctrain_runtime.store.store import CHANNELS, Store, channel_target, open_store, pending_manifest
from samples import fuse
from samples.long_mode import often
from samples.stores import BASE, LAYER, Image, Images, disk

KILLS = often(200, 30)
SECONDS = float(os.environ.get("CTRAIN_STORE_SECONDS", "5"))  # of many at once
GROUP, ADMINS = 12000, (12001, 12002)
OLDER_SCHEMAS = range(1, SCHEMA)
SINCE_SCHEMA_2 = ("labels", "base", "flat", "requires", "signed")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images(tmp_path_factory.mktemp("images"))


@pytest.fixture(params=["ext4", "xfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with disk(tmp_path, request.param, 1500) as mounted:
        yield mounted


def forked(work: Callable[[], object], user: int = 0) -> int:
    """Start `work` in a process of its own: its number. It ends with 0, or with 1 when `work` raises."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        if user:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(user)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def damage(store: Store, folder: Path) -> list[str]:
    """What `verify` says is wrong, and channels that lead nowhere."""
    names = {image.path.name for image in store.images()}
    links = [str(link) for link in (store.root / CHANNELS).glob("*.sif") if channel_target(link) not in names]
    notes = checks.VerifyProgress(folder / "notes")
    return [*links, *(one.problem for one in checks.verify(checks.subjects(store), notes, 2) if one.problem)]


def room(store: Store, kept: set[str]) -> None:
    """Remove all images but some."""
    others = [one.manifest for one in store.images() if one.manifest.name not in kept]
    for other in others:
        (store.root / CHANNELS / f"{other.name}_prod.sif").unlink(missing_ok=True)
    with lock_store(store.root) as writer:
        lifecycle.retire(writer, [f"{other.name}:{other.version}" for other in others])
        lifecycle.collect(writer, 0)


def test_a_kill_at_any_moment_leaves_the_old_state_or_the_new(place: Path, images: Images, tmp_path: Path) -> None:
    """The state: which images there are, and what prod is."""
    root = place / "store"
    init_store(root)
    first = images.new()
    publish(first.path, first.manifest, root, "prod")
    store, chance = open_store(root), random.Random(20261121)
    candidates = [images.new() for _ in range(10)]
    started = time.monotonic()
    assert ended(forked(lambda: publish(candidates[0].path, candidates[0].manifest, root))) == 0
    longest = 1.2 * (time.monotonic() - started)
    killed = finished = 0
    while killed < KILLS:
        image = candidates[killed % len(candidates)]
        # As another image each time, so that it is copied again: a digest is only compared
        manifest = replace(image.manifest, name=f"image{killed + finished}")
        before = {one.manifest.name for one in store.images()}
        process = forked(lambda: publish(image.path, manifest, root, "prod"))  # noqa: B023  # runs before the next
        time.sleep(chance.uniform(0, longest))
        os.kill(process, signal.SIGKILL)
        code = ended(process)
        killed, finished = killed + (code != 0), finished + (code == 0)
        scan = store.scan()
        assert scan.damaged == ()
        after = {one.manifest.name: one.channels for one in scan.images}
        assert before <= after.keys() <= before | {manifest.name}
        assert after.get(manifest.name) in (None, (), ("prod",))
        if killed % 10 == 0:
            assert damage(store, tmp_path) == []
            with lock_store(root) as writer:
                lifecycle.collect(writer, 0)
            publish(image.path, manifest, root, "prod")
            assert ("prod",) in [one.channels for one in store.images() if one.manifest.name == manifest.name]
            assert list(lifecycle.garbage(store, 0, time.time())) == []
            room(store, {"small", manifest.name})
    print(f"killed {killed}, finished before {finished}")


@pytest.mark.parametrize(("kind", "shared"), [("xfs", BASE), ("ext4", 0)])
def test_what_images_share_is_on_the_disk_once(tmp_path: Path, images: Images, kind: str, shared: int) -> None:
    with disk(tmp_path, kind, 500) as place:
        init_store(place / "store")
        for _ in range(3):
            image = images.new()
            outcome = publish(image.path, image.manifest, place / "store")
            assert file_digest(outcome.image.path) == image.manifest.digest
        told, together = usage.usage([one.path for one in open_store(place / "store").images()])
        assert [one.shared for one in told] == [pytest.approx(shared, rel=0.01)] * 3
        assert together == pytest.approx(3 * (BASE + LAYER) - 2 * shared, rel=0.1)


def test_a_full_disk_loses_nothing(tmp_path: Path, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk(tmp_path, "ext4", 8) as place:
        one, other = images.new(), images.new()
        root = place / "store"
        init_store(root)
        publish(one.path, one.manifest, root, "prod")
        subprocess.run(["fallocate", "-l", "2M", str(place / "filler")], check=True)
        with pytest.raises(DiskFullError, match=r"store .* has .* free, the image needs 3.1 MB. Free disk space"):
            publish(other.path, other.manifest, root, "prod")
        much = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: much)  # it becomes full in the middle
        with pytest.raises(DiskFullError, match=r"the disk of store .* became full"):
            publish(other.path, other.manifest, root, "prod")
        (found,) = open_store(root).images()
        assert (found.manifest.digest, found.channels) == (one.manifest.digest, ("prod",))
        assert [path.name for path in root.glob(".*")] == []
        (place / "filler").unlink()
        publish(other.path, other.manifest, root, "prod")
        assert damage(open_store(root), tmp_path) == []


def test_a_store_that_is_mounted_read_only_can_be_read(tmp_path: Path, images: Images) -> None:
    with disk(tmp_path, "ext4", 100) as place:
        init_store(place / "store")
        one, other = images.new(), images.new()
        publish(one.path, one.manifest, place / "store", "prod")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with pytest.raises(StoreError, match=r"is mounted read-only here\. Use a machine where it is writable$"):
            publish(other.path, other.manifest, place / "store", "prod")
        assert damage(open_store(place / "store"), tmp_path) == []


def test_a_file_system_that_goes_away_loses_nothing(tmp_path: Path, images: Images) -> None:
    """A stand-in for a network mount: one by FUSE, whose process is killed while an image is copied."""
    folders = [tmp_path / name for name in ("lower", "upper", "work", "mounted")]
    for folder in folders:
        folder.mkdir()
    lower, upper, work, place = folders
    overlay = ["fuse-overlayfs", "-f", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}"]
    server = fuse.serve(overlay, place)
    init_store(place / "store")
    one, other = images.new(), images.new()
    publish(one.path, one.manifest, place / "store", "prod")

    def cut(_: int) -> None:
        server.kill()
        server.wait()

    with pytest.raises(StoreError, match=r"the file system of store .* fails: .* not connected"):
        publish(other.path, other.manifest, place / "store", "prod", CopyObserver(print, cut))
    subprocess.run(["umount", "--lazy", str(place)], check=True)
    with fuse.mounted(overlay, place):
        store = open_store(place / "store")
        assert [found.manifest.digest for found in store.images()] == [one.manifest.digest]
        publish(other.path, other.manifest, place / "store", "prod")
        assert damage(store, tmp_path) == []


@pytest.mark.parametrize("umask", [0o002, 0o007, 0o022, 0o027, 0o077])
def test_two_admins_of_one_group(images: Images, umask: int) -> None:
    """In a folder with the set-group-ID bit: both write, and what they write does not depend on their umasks."""
    with tempfile.TemporaryDirectory() as name:  # pytest's folders are root's alone, and stay so
        place = Path(name)
        place.chmod(0o755)
        two_admins(place, images, umask)


def two_admins(place: Path, images: Images, umask: int) -> None:
    root = place / "store"
    root.mkdir()
    os.chown(root, ADMINS[0], GROUP)
    root.chmod(0o2775)
    init_store(root)
    one, other = images.new(), images.new()
    readable = [shutil.copy(image.path, place) for image in (one, other)]
    os.umask(umask)
    try:
        first = forked(lambda: publish(Path(readable[0]), one.manifest, root, "prod"), ADMINS[0])
        second = forked(lambda: publish(Path(readable[1]), other.manifest, root, "prod"), ADMINS[1])
        assert [ended(first), ended(second)] == [0, 0]

        def retire() -> None:
            (old,) = (found for found in open_store(root).images() if not found.channels)
            with lock_store(root) as writer:
                lifecycle.retire(writer, [f"small:{old.manifest.version}"])
                lifecycle.collect(writer, 0)

        assert ended(forked(retire, ADMINS[1])) == 0
        assert ended(forked(retire, 12003)) == 1  # neither root nor in the group
    finally:
        os.umask(0o022)
    modes = {path.relative_to(root): path.lstat() for path in root.rglob("*") if not path.is_symlink()}
    assert {found.st_gid for found in modes.values()} == {GROUP}
    wanted = {".sif": 0o444, ".json": 0o444, ".log": 0o664, "": 0o2775}
    assert {str(path): oct(found.st_mode & 0o7777) for path, found in modes.items()} == {
        str(path): oct(0o3777 if path.name == "in-use" else wanted[path.suffix]) for path in modes
    }


def as_of_schema(manifest: Manifest, schema: int) -> dict[str, object]:
    """The manifest as a client of an earlier schema writes it."""
    data = {**asdict(manifest), "schema": schema}
    if schema == 1:
        data = {key: value for key, value in data.items() if key not in SINCE_SCHEMA_2}
    return data if schema < 3 else {**data, "checksum": checksum(data)}


@dataclass(frozen=True)
class Crowd:
    """What processes do with one store at the same time."""

    store: Store
    pool: list[Image]
    notes: Path
    until: float

    def turns(self) -> Iterator[int]:
        return itertools.takewhile(lambda _: time.monotonic() < self.until, itertools.count())

    def publish(self, number: int) -> None:
        """Two images in turn, with channel prod; the version before is retired."""
        mine = [(one.path, replace(one.manifest, name=f"image{number}")) for one in self.pool[number : number + 2]]
        for turn in self.turns():
            publish(*mine[turn % 2], self.store.root, "prod")
            with lock_store(self.store.root) as writer:
                named = [one.manifest for one in self.store.images() if one.manifest.name == mine[0][1].name]
                old = [f"{one.name}:{one.version}" for one in named if one.version != named[-1].version]
                lifecycle.retire(writer, old)

    def publish_newer(self) -> None:
        """As a client of the next schema: publishes and retires what this one cannot read. At least twice."""
        for number in itertools.chain(range(2), (2 + turn for turn in self.turns())):
            image = self.store.root / f"newer_1.0-s-py3-r{number}.sif"
            with self._by_another_client(image, {"schema": 99}, f"newer {number}".encode()):
                time.sleep(0.05)

    def publish_older(self) -> None:
        """As clients of the previous schemas in turn: publishes and retires what this one reads. Twice at least."""
        least = 2 * len(OLDER_SCHEMAS)
        for number in itertools.chain(range(least), (least + turn for turn in self.turns())):
            schema, one = OLDER_SCHEMAS[number % len(OLDER_SCHEMAS)], self.pool[number % len(self.pool)]
            manifest = replace(one.manifest, name="older", release=number + 1, published=manifest_writer.utc_now())
            path = self.store.root / manifest.file_name
            with self._by_another_client(path, as_of_schema(manifest, schema), one.path.read_bytes()):
                (found,) = (image for image in self.store.images() if image.path == path)
                assert found.manifest == manifest

    @contextlib.contextmanager
    def _by_another_client(self, image: Path, manifest: dict[str, object], content: bytes) -> Iterator[None]:
        """Publish an image, and retire it at the end."""
        final = image.with_suffix(".json")
        with lock_store(self.store.root):
            pending_manifest(image).write_text(json.dumps(manifest))
            image.write_bytes(content)
            pending_manifest(image).rename(final)
        yield
        with lock_store(self.store.root):
            shutil.copy(final, self.store.root / "retired")
            final.unlink()

    def read(self) -> None:
        for _ in self.turns():
            scan = self.store.scan()
            assert all("manifest schema 99" in str(error) for error in scan.damaged), scan.damaged
            assert scan.dangling == ()
            for image in scan.images:
                assert image.manifest.name == "small" or image.path.name.startswith(image.manifest.name)
            assert any(image.manifest.name == "small" and image.channels == ("prod",) for image in scan.images)

    def remove(self) -> None:
        for _ in self.turns():
            with contextlib.suppress(FileNotFoundError), lock_store(self.store.root) as writer:
                lifecycle.collect(writer, 0.5 / 86400)

    def verify(self) -> None:
        for _ in self.turns():
            found = list(checks.verify(checks.subjects(self.store), checks.VerifyProgress(self.notes), 2))
            assert [one.problem for one in found if one.is_damaged] == []

    def look(self) -> None:
        for _ in self.turns():
            problems = [finding.text for finding in check_contents(self.store, self.store.scan())]
            assert [text for text in problems if "manifest schema 99" not in text] == []


def test_many_at_once(tmp_path: Path, images: Images) -> None:
    """Eight publish, eight read, and one each removes what it can, verifies, looks for problems, is of the next schema,
    and of the previous ones. No reader fails, sees half a version or a channel that leads nowhere; nothing whole is
    called damaged; what only the newer client can read is kept. The version that all see is of an older schema."""
    root, pool = tmp_path / "store", [images.new() for _ in range(9)]
    init_store(root)
    (root / "retired").mkdir()
    older = publish(pool[0].path, pool[0].manifest, root, "prod").image.path.with_suffix(".json")
    older.chmod(0o644)
    older.write_text(json.dumps(as_of_schema(read_manifest(older), 2)))
    crowd = Crowd(open_store(root), pool, tmp_path / "notes", time.monotonic() + SECONDS)
    work: list[Callable[[], object]] = [lambda number=number: crowd.publish(number) for number in range(8)]
    work += [crowd.read] * 8 + [crowd.remove, crowd.verify, crowd.look, crowd.publish_newer, crowd.publish_older]
    assert [ended(process) for process in [forked(one) for one in work]] == [0] * 21
    newer = sorted((root / "retired").glob("newer_*.json"))
    assert len(newer) > 1
    assert all((root / f"{path.stem}.sif").read_text() == f"newer {path.stem.partition('-r')[2]}" for path in newer)
    for path in newer:
        path.unlink()
    retired = [json.loads(path.read_text())["schema"] for path in (root / "retired").glob("older_*.json")]
    assert all(retired.count(schema) > 1 for schema in OLDER_SCHEMAS)
    assert damage(crowd.store, tmp_path) == []


def test_one_waits_for_the_other_and_is_told_for_whom(tmp_path: Path, images: Images) -> None:
    image = images.new()
    init_store(tmp_path / "store")
    publish(image.path, image.manifest, tmp_path / "store")
    told: list[str] = []
    with lock_store(tmp_path / "store"):
        process = forked(lambda: publish(image.path, image.manifest, tmp_path / "store", "prod", told_to(tmp_path)))
        while not (tmp_path / "told").exists():
            time.sleep(0.05)
        told.append((tmp_path / "told").read_text())
    assert ended(process) == 0
    assert told[0].startswith(f"waiting for pid {os.getpid()} (root on ")
    assert open_store(tmp_path / "store").images()[0].channels == ("prod",)


def told_to(folder: Path) -> CopyObserver:
    def say(text: str) -> None:
        (folder / "said").write_text(text)
        (folder / "said").rename(folder / "told")

    return CopyObserver(say, lambda _: None)

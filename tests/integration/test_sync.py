"""`ctrain store sync`: between folders, and through a real registry on loopback, which a front lets misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.registry import artifacts
from ctrain_builder.registry.client import Reference, RegistryClient
from ctrain_builder.store import lifecycle, usage
from ctrain_builder.store import verify as checks
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_builder.store.sign import Signer
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.cli.main import main
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import CANCELLED
from ctrain_runtime.store import Store, open_store
from samples import registry as samples
from samples.registry import PASSWORD, USER, Answer, Front, Request, demand_token, front, serve
from samples.stores import Image, Images, disk

CHUNK = 1 << 20  # of uploads, so that small images take several
MIB = 1 << 20
R1, R2 = "small_1.0-s-py3-r1", "small_1.0-s-py3-r2"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images(tmp_path_factory.mktemp("images"), 8_000_000)


@pytest.fixture(scope="module")
def pair(images: Images) -> list[Image]:
    return [images.new(), images.new()]


@pytest.fixture
def store(tmp_path: Path, pair: list[Image]) -> Store:
    """Two versions; prod is the first, dev the second."""
    init_store(tmp_path / "store")
    for image, channel in zip(pair, ("prod", "dev")):
        publish(image.path, image.manifest, tmp_path / "store", channel)
    return open_store(tmp_path / "store")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[samples.Registry]:
    if not shutil.which("docker-registry"):
        if os.environ.get("CI"):
            pytest.fail("CI must have docker-registry: see tests/cluster/install")
        pytest.skip("no docker-registry here: tests/cluster/install brings it")
    with serve(tmp_path / "registry") as registry:
        yield registry


@pytest.fixture
def before(real: samples.Registry) -> Iterator[Front]:
    """A front before that registry. Like most proxies, it passes on only what has come whole."""
    with front(real) as made:
        yield made


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_CHUNK", CHUNK)
    monkeypatch.setattr(artifacts, "_WAITS", (0.01, 0.01))
    monkeypatch.setenv("CTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))  # no logins but those of a test
    init_store(tmp_path / "other")


Sync = Callable[..., str]


@pytest.fixture
def sync(capsys: pytest.CaptureFixture[str]) -> Sync:
    def run(*argv: object, code: int = 0) -> str:
        """What `ctrain store sync ARGV` prints; in case of an error, that."""
        ended = main(BUILD_VERBS, ["store", "sync", *map(str, argv)])
        said = capsys.readouterr()
        assert ended == code, said
        return said.err if code else said.out

    return run


def place(registry: Any) -> str:
    return f"oras://{registry.host}/lab/images"


def moved(before: Front) -> int:
    """Bytes that uploads have sent."""
    return sum(len(one.content) for one in before.requests if one.method == "PATCH")


def same(store: Store, root: Path, *stems: str) -> None:
    """Files and manifests are the same, byte for byte; and the other store is whole."""
    for stem in stems:
        for suffix in ("sif", "json"):
            assert (root / f"{stem}.{suffix}").read_bytes() == (store.root / f"{stem}.{suffix}").read_bytes()
    notes = checks.VerifyProgress(root.parent / "notes")
    assert [one.problem for one in checks.verify(checks.subjects(open_store(root)), notes, 1) if one.problem] == []
    assert list(lifecycle.garbage(open_store(root), 0, time.time())) == []
    assert {path.stem for path in root.glob("*.json")} - {"ctrain-store"} == set(stems)


def channels(root: Path) -> dict[str, tuple[str, ...]]:
    return {image.manifest.version: image.channels for image in open_store(root).images()}


# --- what it is for ---


def test_from_a_store_to_a_registry_to_another_store(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    other = tmp_path / "other"
    assert "2 versions copied" in sync(store.root, place(real), "--channels")
    assert "0 versions copied (0 B), 2 there already" in sync(store.root, place(real), "--channels")
    said = json.loads(sync(place(real), other, "--channels", "--json"))
    assert said["copied"] == ["small:1.0-s-r1", "small:1.0-s-r2"]
    assert said["channels"][0] == {"name": "small", "channel": "prod", "before": "", "version": "1.0-s-r1"}
    same(store, other, R1, R2)
    assert channels(other) == {"1.0-s-r1": ("prod",), "1.0-s-r2": ("dev",)}
    lines = [json.loads(line) for line in (other / "ctrain-store.log").read_text().splitlines()]
    assert {(line["action"], line["why"]) for line in lines} == {("sync", f"from {place(real)}")}


def test_the_engine_pulls_what_was_pushed(store: Store, real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    sync(store.root, place(real), "--channels")
    for tag, stem in (("1.0-s-r2", R2), ("prod", R1)):
        pulled = tmp_path / f"{tag}.sif"
        argv = ["apptainer", "--quiet", "pull", "--no-https", str(pulled), f"{place(real)}/small:{tag}"]
        subprocess.run(argv, check=True)
        assert pulled.read_bytes() == (store.root / f"{stem}.sif").read_bytes()


def test_what_the_engine_pushed_is_not_from_a_store(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    image = str(store.root / f"{R1}.sif")
    argv = ["apptainer", "--quiet", "push", "--allow-unsigned", "--no-https", image, f"{place(real)}/small:latest"]
    subprocess.run(argv, check=True)
    said = sync(place(real), tmp_path / "other", "small:latest", code=68)
    assert "There are: none of that name; " in said
    assert "small:latest is not from a ctrain store: it has no manifest of ctrain" in said
    sync(store.root, place(real))
    sync(place(real), tmp_path / "other")  # leaves it out, and says so
    same(store, tmp_path / "other", R1, R2)
    subprocess.run([*argv[:-1], f"{place(real)}/small:prod"], check=True)
    assert "small:prod is not from a ctrain store" in sync(store.root, place(real), "--channels", code=79)


def test_one_version_one_channel_and_a_look_before(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    assert "would have copied small 1.0-s-r1" in sync(store.root, place(real), "small:prod", "--dry-run")
    assert "has no repository" in sync(place(real), tmp_path / "other", "small", code=79)
    sync(store.root, place(real), "small:prod", "--channels")
    sync(place(real), tmp_path / "other", "--channels")
    assert channels(tmp_path / "other") == {"1.0-s-r1": ("prod",)}
    sync(store.root, tmp_path / "other", "small:1.0-s-r2", "--channels")
    assert channels(tmp_path / "other") == {"1.0-s-r1": ("prod",), "1.0-s-r2": ("dev",)}
    same(store, tmp_path / "other", R1, R2)
    said = sync(store.root, tmp_path / "other", "small:1.0-s-r7", code=68)
    assert "image 'small:1.0-s-r7' is not in" in said
    assert "There are: small:1.0-s-r1, small:1.0-s-r2" in said


def test_from_registry_to_registry(store: Store, real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    sync(store.root, place(real))
    sync(place(real), f"oras://{real.host}/copy")
    sync(f"oras://{real.host}/copy", tmp_path / "other")
    same(store, tmp_path / "other", R1, R2)


def test_a_signed_image_stays_valid(pair: list[Image], real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)
    subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)], check=True)
    key.chmod(0o600)
    init_store(tmp_path / "store")
    publish(pair[0].path, pair[0].manifest, tmp_path / "store", "prod", signer=Signer(find_engine(), str(key)))
    sync(tmp_path / "store", place(real))
    sync(place(real), tmp_path / "other")
    (found,) = open_store(tmp_path / "other").images()
    assert found.manifest.signed
    subprocess.run(["apptainer", "verify", "--key", str(public), str(found.path)], check=True)


# --- what is not changed ---


@pytest.mark.parametrize("kind", ["folder", "registry"])
def test_a_version_never_changes(
    kind: str, store: Store, images: Images, request: pytest.FixtureRequest, tmp_path: Path, sync: Sync
) -> None:
    target = str(tmp_path / "other") if kind == "folder" else place(request.getfixturevalue("real"))
    sync(store.root, target, "small:1.0-s-r1")
    third = images.new()
    init_store(tmp_path / "third")
    publish(third.path, third.manifest, tmp_path / "third")
    digest = open_store(tmp_path / "third").images()[0].manifest.digest
    said = sync(tmp_path / "third", target, code=76)
    assert f"{target} has another small 1.0-s-r1: sha256:" in said
    assert digest[:19] in said
    init_store(tmp_path / "again")
    sync(target, tmp_path / "again")
    same(store, tmp_path / "again", R1)


def test_retired_versions_stay_retired(store: Store, real: samples.Registry, tmp_path: Path, sync: Sync) -> None:
    sync(store.root, place(real), "--channels")
    with lock_store(store.root) as writer:
        (store.root / "channels/small_prod.sif").unlink()
        lifecycle.retire(writer, ["small:1.0-s-r1"])
        lifecycle.collect(writer, 0)
    said = sync(place(real), store.root, "--channels")
    assert f"small 1.0-s-r1 was retired in {store.root}: it stays so" in said
    assert channels(store.root) == {"1.0-s-r2": ("dev",)}
    assert "1 version copied" in sync(store.root, tmp_path / "other")


def test_what_was_put_aside_as_damaged_comes_again(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync
) -> None:
    sync(store.root, place(real))
    sync(place(real), tmp_path / "other")
    other = open_store(tmp_path / "other")
    (other.root / f"{R1}.sif").chmod(0o644)
    with (other.root / f"{R1}.sif").open("r+b") as file:
        file.write(b"#!damaged")
    (bad,) = [
        one for one in checks.verify(checks.subjects(other), checks.VerifyProgress(tmp_path / "n"), 1) if one.problem
    ]
    with lock_store(other.root) as writer:
        checks.quarantine(writer, bad)
    assert "1 version copied" in sync(place(real), other.root)
    same(store, other.root, R1, R2)


def test_a_damaged_version_here_does_not_go_there(store: Store, real: samples.Registry, sync: Sync) -> None:
    path = store.root / f"{R1}.sif"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"flipped")
    assert "small 1.0-s-r1 is damaged: it has the digest sha256:" in sync(store.root, place(real), code=69)
    assert "has no repository" in sync(place(real), store.root, "small", code=79)


# --- interrupted ---

# The handler is set because a process started in the background of a script has SIGINT switched off.
PROGRAM = """
import os, signal, sys, time
from ctrain_builder.cli.main import main
from ctrain_builder.registry import artifacts
from ctrain_builder.store import copy
artifacts._CHUNK = copy._CHUNK = 1 << 20
read = os.pread
os.pread = lambda *args: (time.sleep({pause}), read(*args))[1]
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@contextlib.contextmanager
def started(*argv: object, pause: float = 0) -> Iterator[subprocess.Popen[bytes]]:
    """`ctrain store sync ARGV` in a process of its own, which reads slowly."""
    command = [sys.executable, "-c", PROGRAM.format(pause=pause), "store", "sync", *map(str, argv)]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(done: Callable[[], object]) -> None:
    for _ in range(2000):
        if done():
            return
        time.sleep(0.01)
    raise AssertionError("it does not happen")


def part(root: Path) -> int:
    """Bytes of a copy that is being made."""
    return sum(path.stat().st_size for path in root.glob(".*.part"))


def test_killed_between_folders(store: Store, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    with started(store.root, other, "small:prod", pause=0.1) as process:
        wait_for(lambda: other.exists() and part(other) >= 3 * MIB)
        process.send_signal(signal.SIGKILL)
    assert open_store(other).images() == ()
    has, size, pread, taken = part(other), store.images()[0].manifest.size, os.pread, []

    def counting(file: int, count: int, at: int) -> bytes:
        if Path(f"/proc/self/fd/{file}").resolve().parent == store.root:
            taken.append(count)
        return pread(file, count, at)

    monkeypatch.setattr(os, "pread", counting)
    sync(store.root, other, "small:prod")
    assert 0 < sum(taken) <= size - has + 4096
    same(store, other, R1)


def test_killed_where_layers_are_shared(pair: list[Image], tmp_path: Path, sync: Sync) -> None:
    """What is taken by reference is there first, so the copy has a hole before it."""
    init_store(tmp_path / "store")
    publish(pair[0].path, pair[0].manifest, tmp_path / "store")
    with disk(tmp_path, "xfs", 400) as mounted:
        other = mounted / "other"
        init_store(other)
        sync(tmp_path / "store", other)
        publish(pair[1].path, pair[1].manifest, tmp_path / "store")
        with started(tmp_path / "store", other, pause=0.5) as process:
            wait_for(lambda: part(other) >= MIB)
            process.send_signal(signal.SIGKILL)
        sync(tmp_path / "store", other)
        same(open_store(tmp_path / "store"), other, R1, R2)
        told, together = usage.usage([image.path for image in open_store(other).images()])
        assert together < sum(one.size for one in told) - 7_000_000


def test_killed_on_the_way_from_a_registry(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    other, size = tmp_path / "other", store.images()[0].manifest.size
    sync(store.root, place(before), "small:prod")
    before.fault = slow
    with started(place(before), other, "small") as process:
        wait_for(lambda: other.exists() and part(other) >= 3 * MIB)
        process.send_signal(signal.SIGKILL)
    assert open_store(other).images() == ()
    before.fault = lambda _, __: None
    before.requests.clear()
    sync(place(before), other)
    same(store, other, R1)
    asked = [one.headers["range"] for one in before.requests if "range" in one.headers]
    assert len(asked) == 1
    assert 3 * MIB - 4096 <= int(asked[0].removeprefix("bytes=").removesuffix("-")) < size


def slow(_: Request, answer: Answer) -> None:
    if len(answer.body) > MIB:
        answer.chunk, answer.pause = 200_000, 0.02


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_on_the_way_to_a_registry(
    how: signal.Signals, store: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    """The part that is under way is sent to its end."""
    arrived = late(before)
    with started(store.root, place(before), "small:prod") as process:
        wait_for(lambda: len(arrived) == 3)
        process.send_signal(how)
        assert process.wait() == (CANCELLED if how == signal.SIGINT else -how)
    goes_on(store, before, tmp_path, sync)


def test_killed_on_the_way_to_a_registry(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    noted: set[str] = set()
    with started(store.root, place(before), "small:prod", pause=0.5) as process:
        wait_for(lambda: noted.update(map(Path.read_text, notes(tmp_path))) or len(noted) == 4)
        process.send_signal(signal.SIGKILL)  # while it reads
    goes_on(store, before, tmp_path, sync)


def test_killed_while_a_part_is_sent(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    """docker-registry forgets such an upload: all of it is sent again."""
    arrived = late(before)
    with started(store.root, place(before), "small:prod") as process:
        wait_for(lambda: len(arrived) == 3)
        process.send_signal(signal.SIGKILL)
    before.fault = lambda _, __: None
    sync(store.root, place(before))
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1, R2)
    assert notes(tmp_path) == []


def late(before: Front) -> list[Request]:
    """Parts of uploads that have come, and whose answers take half a second."""
    arrived: list[Request] = []

    def wait(request: Request, _: Answer) -> None:
        if request.method == "PATCH":
            arrived.append(request)
            time.sleep(0.5)

    before.fault = wait
    return arrived


def goes_on(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    """After three parts."""
    assert moved(before) == 3 * MIB
    before.fault = lambda _, __: None
    before.requests.clear()
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size - 3 * MIB
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1)
    assert notes(tmp_path) == []


def notes(folder: Path) -> list[Path]:
    """Of uploads that have been begun."""
    return [path for path in (folder / "cache").glob("upload-*") if not path.suffix]


# --- trouble on the way ---


def spoil(
    method: str, path: str, change: Callable[[Answer], None], times: int = 1
) -> Callable[[Request, Answer], None]:
    """A fault of the first answers to such requests; of blobs only those that are images."""
    seen: list[Request] = []

    def fault(request: Request, answer: Answer) -> None:
        small = request.method == "GET" and "/blobs/" in path and len(answer.body) < MIB
        if request.method == method and path in request.path and not small and len(seen) < times:
            seen.append(request)
            change(answer)

    return fault


def cut(answer: Answer) -> None:
    answer.cut = True


def flip(answer: Answer) -> None:
    answer.body = answer.body[:5_000_000] + b"flipped" + answer.body[5_000_007:]


@pytest.fixture
def pushed(store: Store, before: Front, sync: Sync) -> Store:
    sync(store.root, place(before), "--channels")
    before.requests.clear()
    return store


def test_a_download_that_is_cut_goes_on(pushed: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.fault = spoil("GET", "/blobs/", cut, times=3)
    sync(place(before), tmp_path / "other")
    same(pushed, tmp_path / "other", R1, R2)
    ranges = [one.headers["range"] for one in before.requests if "range" in one.headers]
    assert len(ranges) == 3


def test_a_registry_without_ranges(pushed: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.fault = spoil("GET", "/blobs/", cut)
    before.stand = lambda request: request.headers.pop("range", None) and None
    sync(place(before), tmp_path / "other")
    same(pushed, tmp_path / "other", R1, R2)


@pytest.mark.usefixtures("pushed")
def test_a_download_that_always_ends_early(before: Front, tmp_path: Path, sync: Sync) -> None:
    other = tmp_path / "other"
    before.fault = spoil("GET", "/blobs/", lambda answer: setattr(answer, "body", b""), times=100)
    said = sync(place(before), other, "small:prod", code=79)
    assert said.startswith(
        f"ctrain: {before.host} sends less of {before.host}/lab/images/small:1.0-s-r1 than it should"
    )
    assert open_store(other).images() == ()


@pytest.mark.parametrize("times", [1, 2])
def test_bytes_that_were_changed_on_the_way(
    times: int, pushed: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    other = tmp_path / "other"
    before.fault = spoil("GET", "/blobs/", flip, times)
    said = sync(place(before), other, code=69)
    assert "what came of small_1.0-s-py3-r1.sif is damaged: it has the digest sha256:" in said
    assert [path.name for path in other.iterdir()] == ["ctrain-store.json"]
    before.fault = lambda _, __: None
    sync(place(before), other)
    same(pushed, other, R1, R2)


def test_a_copy_that_was_damaged_while_it_was_left(pushed: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    other, manifest = tmp_path / "other", pushed.images()[0].manifest
    sync(place(before), other, "small:dev")
    (other / f".{manifest.file_name}.{manifest.digest[-12:]}.part").write_bytes(os.urandom(2 * MIB))
    sync(place(before), other)
    same(pushed, other, R1, R2)


def test_a_copy_goes_to_no_file_of_others(store: Store, tmp_path: Path, sync: Sync) -> None:
    other, manifest = tmp_path / "other", store.images()[0].manifest
    sync(store.root, other, "small:dev")
    (tmp_path / "precious").write_text("keep")
    (other / f".{manifest.file_name}.{manifest.digest[-12:]}.part").symlink_to(tmp_path / "precious")
    sync(store.root, other)
    same(store, other, R1, R2)
    assert (tmp_path / "precious").read_text() == "keep"


@pytest.mark.usefixtures("pushed")
def test_a_registry_that_lies(before: Front, tmp_path: Path, sync: Sync) -> None:
    usual = spoil("GET", "/manifests/1.0-s-r1", lambda answer: answer.headers.update({"Docker-Content-Digest": "x"}))
    before.fault = usual
    assert "lies about" in sync(place(before), tmp_path / "other", code=79)

    def other_version(request: Request) -> Optional[Answer]:
        request.path = request.path.replace("1.0-s-r1", "1.0-s-r2")
        return None

    before.stand = other_version
    said = sync(place(before), tmp_path / "other", code=79)
    assert f"{before.host}/lab/images/small:1.0-s-r1 is small 1.0-s-r2 in truth" in said
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["ctrain-store.json"]


@pytest.mark.parametrize(
    "facts",
    [{"name": "../../etc"}, {"tag": "../x"}, {"stack": "s/../../x"}, {"size": 3}, {"release": -1}],
)
def test_a_manifest_that_leads_out_of_the_store(
    facts: dict[str, Any], store: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    """What an attacker can push: everything fits together, but for the names in it."""
    sync(store.root, place(before))
    client, manifest = RegistryClient(), store.images()[0].manifest
    evil = replace(manifest, **facts)
    artifacts.tag(client, Reference(before.host, "lab/images/small", "prod", ""), evil)
    foreign = not {"size", "release"} & facts.keys()
    said = sync(place(before), tmp_path / "other", "small:prod", code=68 if foreign else 79)
    assert "small:prod" in said
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["ctrain-store.json"]


def test_a_manifest_that_is_damaged_or_newer(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    """It is left out, and the exit code says that something was."""
    sync(store.root, place(before))
    newer = replace(store.images()[0].manifest, schema=99)
    artifacts.tag(RegistryClient(), Reference(before.host, "lab/images/small", "prod", ""), newer)
    said = sync(place(before), tmp_path / "other", code=69)
    assert said.startswith(f"ctrain: left out: unsupported manifest schema 99 in {before.host}/lab/images/small:prod")
    same(store, tmp_path / "other", R1, R2)


def dropped(before: Front, times: int) -> Callable[[Request], Optional[Answer]]:
    """The connection ends while the third part of an upload is sent, so many times."""
    left = [True] * times

    def stand(request: Request) -> Optional[Answer]:
        if moved(before) > 2 * MIB and request.method == "PATCH" and left:
            left.pop()
            raise ConnectionResetError
        return None

    return stand


def test_an_upload_that_is_cut_goes_on(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.stand = dropped(before, 2)
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size + 2 * CHUNK
    before.stand = lambda _: None
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1)


def test_an_upload_that_is_always_cut(store: Store, before: Front, sync: Sync) -> None:
    before.stand = dropped(before, 100)
    said = sync(store.root, place(before), code=79)
    assert said.startswith(f"ctrain: {before.host} can't be reached: ")
    assert said.endswith("Try again later: it goes on where it was\n")
    before.stand = lambda _: None
    before.requests.clear()
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size - 2 * CHUNK


def test_an_upload_that_the_registry_has_forgotten(store: Store, before: Front, tmp_path: Path, sync: Sync) -> None:
    before.stand = dropped(before, 100)
    sync(store.root, place(before), "small:prod", code=79)
    before.requests.clear()
    before.stand = lambda request: (
        Answer(404, {}, b"{}") if request.method == "GET" and "/uploads/" in request.path else None
    )
    sync(store.root, place(before), "small:prod")
    assert moved(before) == store.images()[0].manifest.size
    before.stand = lambda _: None
    sync(place(before), tmp_path / "other")
    same(store, tmp_path / "other", R1)


def test_a_blob_that_is_there_is_not_sent_again(store: Store, before: Front, sync: Sync) -> None:
    before.fault = spoil("PUT", "/manifests/", lambda answer: setattr(answer, "status", 400))
    sync(store.root, place(before), "small:prod", code=79)
    before.requests.clear()
    sync(store.root, place(before), "small:prod")
    assert moved(before) == 0


@pytest.mark.parametrize("path", ["/uploads/", "/manifests/"])
def test_a_registry_that_says_it_has_something_else(path: str, store: Store, before: Front, sync: Sync) -> None:
    lie = {"Docker-Content-Digest": "sha256:0"}
    before.fault = spoil("PUT", path, lambda answer: answer.headers.update(lie))
    assert "says it has sha256:0 now" in sync(store.root, place(before), code=79)


def test_another_who_was_quicker(store: Store, before: Front, images: Images, tmp_path: Path, sync: Sync) -> None:
    """He gave the same version to another image while ours was sent."""
    other = images.new()
    publish(other.path, other.manifest, tmp_path / "other")
    sync(tmp_path / "other", place(before))
    before.fault = spoil("HEAD", "/manifests/", lambda answer: setattr(answer, "status", 404))
    assert "has another small 1.0-s-r1" in sync(store.root, place(before), "small:prod", code=76)
    init_store(tmp_path / "again")
    sync(place(before), tmp_path / "again")
    same(open_store(tmp_path / "other"), tmp_path / "again", R1)


def test_a_registry_that_does_not_list_its_repositories(
    pushed: Store, before: Front, tmp_path: Path, sync: Sync
) -> None:
    before.stand = lambda request: Answer(404, {}, b"{}") if "_catalog" in request.path else None
    said = sync(place(before), tmp_path / "other", code=79)
    assert said == f"ctrain: {before.host} does not tell which repositories it has. Name the images\n"
    sync(place(before), tmp_path / "other", "small")
    same(pushed, tmp_path / "other", R1, R2)


def test_a_full_disk(pushed: Store, before: Front, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk(tmp_path, "ext4", 16) as mounted:
        other = mounted / "other"
        init_store(other)
        subprocess.run(["fallocate", "-l", "6M", str(mounted / "filler")], check=True)
        assert "free, the image needs 8" in sync(place(before), other, "small:prod", code=75)
        much = shutil.disk_usage("/")
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "disk_usage", lambda _: much)  # it becomes full in the middle
            assert f"the disk of store {other} became full" in sync(place(before), other, "small:prod", code=75)
        assert open_store(other).images() == ()
        (mounted / "filler").unlink()
        before.requests.clear()
        sync(place(before), other, "small:prod")
        assert [one for one in before.requests if "range" in one.headers]  # it went on where it was
        same(pushed, other, R1)


# --- logins ---

LOGIN = {"APPTAINER_DOCKER_USERNAME": USER, "APPTAINER_DOCKER_PASSWORD": PASSWORD}


def test_a_registry_with_logins(
    store: Store, real: samples.Registry, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert real  # is there, or was skipped
    with serve(tmp_path / "locked", password=True) as locked:
        said = sync(store.root, place(locked), code=79)
        assert f"{locked.host} does not let us write lab/images/small without the right login. Log in with: " in said
        assert "does not let us read its list of repositories" in sync(place(locked), store.root, code=79)
        monkeypatch.setenv("APPTAINER_DOCKER_USERNAME", USER)
        monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "tell nobody")
        assert "nobody" not in sync(store.root, place(locked), code=79)
        monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", PASSWORD)
        sync(store.root, place(locked), "--channels")
        sync(place(locked), tmp_path / "other", "--channels")
    same(store, tmp_path / "other", R1, R2)


def test_tokens(store: Store, before: Front, tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    demand_token(before)
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    sync(store.root, place(before), "--channels")
    assert {urlsplit(one.path).query for one in before.asked("/token")} == {
        "service=test%2C+really&scope=repository%3Alab%2Fimages%2Fsmall%3Apull%2Cpush"
    }
    sync(place(before), tmp_path / "other", "--channels")
    same(store, tmp_path / "other", R1, R2)


@pytest.mark.usefixtures("pushed")
def test_a_login_that_may_only_read(before: Front, images: Images, tmp_path: Path, sync: Sync) -> None:
    before.stand = lambda request: Answer(403, {}, b"{}") if request.method not in ("GET", "HEAD") else None
    sync(place(before), tmp_path / "other")
    third = images.new()
    publish(third.path, third.manifest, tmp_path / "other")
    said = sync(tmp_path / "other", place(before), code=79)
    assert f"{before.host} does not let us write lab/images/small without the right login" in said


def test_an_upload_that_is_sent_elsewhere_brings_no_login_there(
    store: Store, before: Front, real: samples.Registry, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    demand_token(before)
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    with front(real) as storage:
        before.fault = spoil(
            "POST",
            "/uploads/",
            lambda answer: answer.headers.update(
                Location=answer.headers["Location"].replace(before.host, storage.host)
            ),
            times=100,
        )
        sync(store.root, place(before), "small:prod")
        assert storage.asked("/uploads/")
        assert [one for one in storage.requests if "authorization" in one.headers] == []

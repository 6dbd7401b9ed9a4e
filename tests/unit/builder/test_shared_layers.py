from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest

from ctrain_builder.build import Builder
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.layers import inherit, shared_layers
from ctrain_builder.layers.container import Container
from ctrain_builder.layers.shared_layers import SharedLayers
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan, PlannedLayer
from ctrain_builder.registry.stored_layer import StoredLayer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError, ConfigError, DiskFullError, RegistryError
from ctrain_runtime.registry.client import RegistryClient, digest_of
from ctrain_runtime.store.manifest import Layer, Manifest
from samples.registry import Answer, Front, front
from samples.sample_images import sif
from samples.shelf import Shelf

ENGINE = Engine("apptainer", "/nowhere", "1.4.5")
BASE, UPPER = b"hsqs the base", b"hsqs the upper layer"
EARLY, LATE = "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z"


class Lines:
    """A Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str, str]] = []
        self.notes: list[str] = []

    def expect(self, *_: object) -> None: ...

    def begin(self, kind: str, name: str, *_: object) -> Any:
        return SimpleNamespace(end=lambda outcome, _size=None: self.steps.append((kind, name, outcome)))

    def done(self, kind: str, name: str, outcome: str, _size: Optional[int] = None) -> None:
        self.steps.append((kind, name, outcome))

    def tick(self) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def registry(shelf: Shelf) -> Iterator[Front]:
    with front() as made:
        made.stand = shelf
        yield made


@pytest.fixture
def where(registry: Front) -> str:
    return f"oras://{registry.host}/layers"


@pytest.fixture
def lines() -> Lines:
    return Lines()


def client() -> RegistryClient:
    return RegistryClient({}, timeout=5, pause=lambda _: None)


def plan(project: Path, cache: Cache) -> BuildPlan:
    spec = image_spec.find_spec(project / "definitions", "small")
    return build_plan.plan_image(spec, {}, {}, "amd64", cache.layers.has, lambda _: f"sha256:{'c3' * 32}")


@pytest.fixture
def built(project: Path, tmp_path: Path, make_manifest: Callable[..., Manifest]) -> tuple[Cache, BuildPlan, Manifest]:
    """A cache with both layers of an image."""
    cache = open_cache(tmp_path / "built")
    base, upper = plan(project, cache).layers
    for part, content, time in ((base, sif(data=BASE), EARLY), (upper, UPPER, LATE)):
        made = tmp_path / "made"
        made.write_bytes(content)
        cache.layers.add(made, cache.layers.path(part.key, part.definition.is_base), time)
    parts = tuple(
        Layer(part.name, part.key, len(data), digest_of(data)) for part, data in ((base, BASE), (upper, UPPER))
    )
    return cache, plan(project, cache), dataclasses.replace(make_manifest(), layers=parts)


def offered(
    shared: SharedLayers, project: Path, cache: Cache, said: Callable[[str], None] = print
) -> list[PlannedLayer]:
    return list(shared.with_offers(plan(project, cache), cache, said).layers)


def test_what_was_uploaded_is_offered_to_another_cache(
    built: tuple[Cache, BuildPlan, Manifest], project: Path, tmp_path: Path, where: str, lines: Lines, shelf: Shelf
) -> None:
    cache, whole, manifest = built
    assert SharedLayers(target=where, client=client).upload(whole, manifest, cache, lines) is None
    assert lines.steps == [("upload", "base", "uploaded"), ("upload", "upper", "uploaded")]
    assert {BASE, UPPER} <= set(shelf.blobs.values()), "partitions, not files"
    base, upper = offered(SharedLayers((where,), client=client), project, open_cache(tmp_path / "new"))
    assert base.offer == StoredLayer(
        base.key, "base", "amd64", "", LayerContent(digest_of(BASE), len(BASE), EARLY, where)
    )
    assert upper.offer == StoredLayer(
        upper.key, "upper", "amd64", digest_of(BASE), LayerContent(digest_of(UPPER), len(UPPER), LATE, where)
    )
    assert (base.downloads, upper.downloads) == (True, True)
    assert [part.offer for part in offered(SharedLayers((where,), client=client), project, cache)] == [None, None]


@pytest.mark.parametrize("secret", [True, False])
def test_what_must_stay_here_stays(
    built: tuple[Cache, BuildPlan, Manifest], where: str, lines: Lines, shelf: Shelf, secret: bool
) -> None:
    """A base of others, a layer that was built with a password at hand, one from elsewhere."""
    cache, whole, manifest = built
    base, upper = whole.layers
    record = cache.layers.path(upper.key, False).with_suffix(".json")
    kept = {"private": True} if secret else {"origin": "oras://r.example.org/layers"}
    record.write_text(json.dumps({**json.loads(record.read_text()), **kept}))
    of_others = dataclasses.replace(base, inputs=dataclasses.replace(base.inputs, base=digest_of(b"ngc")))
    whole = dataclasses.replace(whole, layers=(of_others, upper))
    assert SharedLayers(target=where, client=client).upload(whole, manifest, cache, lines) is None
    assert not lines.steps and not shelf.blobs
    assert lines.notes == [
        "layer base is not uploaded: it holds an image of others; where its licence allows that: --cache-bases",
        "layer upper is not uploaded: it "
        + (
            "was built with a password of the build host at hand"
            if secret
            else "comes from oras://r.example.org/layers"
        ),
    ]
    SharedLayers(target=where, bases=True, client=client).upload(whole, manifest, cache, lines)
    assert lines.steps == [("upload", "base", "uploaded")]


def test_nothing_goes_on_top_of_a_newer_layer(
    built: tuple[Cache, BuildPlan, Manifest], where: str, lines: Lines, shelf: Shelf
) -> None:
    cache, whole, manifest = built
    SharedLayers(target=where, client=client).upload(whole, manifest, cache, lines)
    newer = {key: text.replace(EARLY.encode(), b"2030-01-01T00:00:00Z") for key, text in shelf.manifests.items()}
    shelf.manifests = {whole.keys[0]: newer[whole.keys[0]].replace(digest_of(BASE).encode(), digest_of(b"x").encode())}
    lines.steps.clear()
    assert SharedLayers(target=where, client=client).upload(whole, manifest, cache, lines) is None
    assert lines.steps == [("upload", "base", "newer exists")]
    assert list(shelf.manifests) == [whole.keys[0]]


def test_nothing_is_uploaded_of_an_image_that_images_yaml_keeps(
    built: tuple[Cache, BuildPlan, Manifest], where: str, lines: Lines, shelf: Shelf
) -> None:
    cache, whole, manifest = built
    kept = dataclasses.replace(whole, spec=dataclasses.replace(whole.spec, redistribute=False))
    assert SharedLayers(target=where, bases=True, client=client).upload(kept, manifest, cache, lines) is None
    why = "images.yaml says of the image or its parent: redistribute: no"
    assert lines.notes == [f"layer {name} is not uploaded: {why}" for name in ("base", "upper")]
    assert not shelf.blobs


def test_an_upload_that_fails_is_told(
    built: tuple[Cache, BuildPlan, Manifest], where: str, lines: Lines, registry: Front
) -> None:
    cache, whole, manifest = built
    registry.stand = lambda request: Answer(404 if request.method in ("GET", "HEAD") else 403, {}, b"{}")
    problem = SharedLayers(target=where, client=client).upload(whole, manifest, cache, lines)
    assert isinstance(problem, RegistryError) and "denies write access to layers" in problem.message
    assert lines.steps == [("upload", "base", "failed")]


def test_a_source_that_fails_is_named_once_and_the_next_one_is_asked(
    built: tuple[Cache, BuildPlan, Manifest], project: Path, tmp_path: Path, where: str, lines: Lines
) -> None:
    cache, whole, manifest = built
    SharedLayers(target=where, client=client).upload(whole, manifest, cache, lines)
    with front() as down:
        down.stand = lambda _: Answer(500, {}, b"")
        other = f"oras://{down.host}/layers"
        shared = SharedLayers((other, where), client=client)
        found = offered(shared, project, open_cache(tmp_path / "new"), lines.note)
        assert len(down.requests) == 4, "one question, with its tries"
    assert [part.downloads for part in found] == [True, True]
    assert lines.notes == [
        f"{down.host} answers 500 Internal Server Error; no layers are taken from {other}",
    ]
    assert shared.failed == {other}


def test_garbage_is_named_and_only_that_layer_is_built(
    built: tuple[Cache, BuildPlan, Manifest], project: Path, tmp_path: Path, where: str, lines: Lines, shelf: Shelf
) -> None:
    cache, whole, manifest = built
    SharedLayers(target=where, client=client).upload(whole, manifest, cache, lines)
    shelf.manifests[whole.keys[1]] = b'{"config": {}}'
    base, upper = offered(SharedLayers((where,), client=client), project, open_cache(tmp_path / "new"), lines.note)
    assert base.downloads and upper.offer is None
    [note] = lines.notes
    assert note.endswith("cannot be used: it is not a layer of ctrain; layer upper is built")


def planned(project: Path, tmp_path: Path, where: str) -> tuple[PlannedLayer, StoredLayer]:
    upper = plan(project, open_cache(tmp_path / "new")).layers[1]
    return upper, StoredLayer(upper.key, "upper", "amd64", "", LayerContent(digest_of(UPPER), len(UPPER), LATE, where))


@pytest.mark.parametrize("marker", ["", "another key\n"])
def test_a_file_system_of_another_key_is_refused(
    project: Path, tmp_path: Path, where: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    upper, offer = planned(project, tmp_path, where)
    shelf.blobs[offer.content.digest] = UPPER
    told = {"ctrain-layer": f"{upper.key}\n"}
    monkeypatch.setattr(inherit, "copy_metadata", lambda *_: told)
    monkeypatch.setattr(shared_layers, "_LOG_SECONDS", 0)
    container = Container(ENGINE, tmp_path, lambda: None)
    shared = SharedLayers((where,), client=client)
    made = shared.fetch(container, upper, offer, [tmp_path / "base.sif"], tmp_path / "log")
    assert made.read_bytes() == UPPER
    assert re.fullmatch(r"20 B of 20 B, \d.* [kMG]?B/s\n", (tmp_path / "log").read_text())
    told["ctrain-layer"] = marker
    with pytest.raises(BuildError, match=f"is not the layer with the key {upper.key[:12]}"):
        shared.fetch(container, upper, offer, [tmp_path / "base.sif"], tmp_path / "log")


class Fake:
    """Instead of SharedLayers: `fetch` does what `act` does."""

    target = ""

    def __init__(self, act: Callable[[Path], None]) -> None:
        self.act, self.failed = act, set[str]()

    def fetch(self, container: Container, *_: object) -> Path:
        path = container.work / "fetched"
        self.act(path)
        return path


class Made(Exception):
    """The image would be put together now."""


def build(project: Path, cache: Cache, shared: object, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of an image with an offer for both. Who builds one writes `built`."""
    whole = plan(project, cache)
    base, upper = whole.layers
    offers = [
        StoredLayer(base.key, "base", "amd64", "", LayerContent(digest_of(BASE), len(BASE), EARLY, "oras://r/x")),
        StoredLayer(
            upper.key, "upper", "amd64", digest_of(BASE), LayerContent(digest_of(UPPER), len(UPPER), LATE, "oras://r/x")
        ),
    ]
    whole = build_plan.with_offers(whole, lambda _: "", lambda part, _: offers[part is not base])

    def make_layer(self: Builder, _: object, part: PlannedLayer, __: object, target: Path, ___: object) -> None:
        with cache.work.create() as work:
            made = work / "made"
            made.write_bytes(sif(data=b"built") if part.definition.is_base else b"built")
            cache.layers.add(made, target, "2026-11-24T00:00:00Z", private=bool(self.host.secrets))

    def stop(*_: object) -> None:
        raise Made

    monkeypatch.setattr(Builder, "_make_layer", make_layer)
    monkeypatch.setattr(Builder, "_assemble", stop)
    monkeypatch.setattr("ctrain_builder.build.require_overlays", lambda _: None)
    builder = Builder(cache, ENGINE, BuildHost({}, (), None, {}), lines, shared=shared)  # type: ignore[arg-type]  # a stand-in
    builder.build(whole)


def test_downloads_take_the_place_of_builds(
    project: Path, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache(tmp_path / "new")
    contents = iter((sif(data=BASE), UPPER))
    with pytest.raises(Made):
        build(project, cache, Fake(lambda path: path.write_bytes(next(contents)) and None), lines, monkeypatch)
    assert lines.steps == [("layer", "base", "downloaded"), ("layer", "upper", "downloaded")]
    records = [json.loads(path.read_text()) for path in sorted((cache.root / "layers").glob("*.json"))]
    assert sorted(record["built"] for record in records) == [EARLY, LATE]
    assert {record["origin"] for record in records} == {"oras://r/x"}


def test_a_time_to_come_is_not_recorded(
    project: Path, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is ahead: all that is built on such a layer would be older than it, and built again for ever."""
    cache = open_cache(tmp_path / "new")
    contents = iter((sif(data=BASE), UPPER))
    monkeypatch.setattr("ctrain_builder.build.manifest_writer.utc_now", lambda: EARLY)
    with pytest.raises(Made):
        build(project, cache, Fake(lambda path: path.write_bytes(next(contents)) and None), lines, monkeypatch)
    records = [json.loads(path.read_text()) for path in (cache.root / "layers").glob("*.json")]
    assert [record["built"] for record in records] == [EARLY] * 2


@pytest.mark.parametrize(
    "error", [RegistryError("r stopped sending"), BuildError("not a squashfs"), ConfigError("logins are damaged")]
)
def test_a_download_that_fails_is_told_and_the_layer_is_built(
    project: Path, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    cache = open_cache(tmp_path / "new")
    with pytest.raises(Made):
        build(project, cache, Fake(fail), lines, monkeypatch)
    # The base that was built is not the one that the other offer was built on: that is not even tried.
    assert lines.steps == [("layer", "base", "failed")]
    assert lines.notes == [f"layer base is built: {error}"]
    assert sorted(path.read_bytes() for path in (cache.root / "layers").glob("*.sqsh")) == [b"built"]
    assert list((cache.root / "tmp").iterdir()) == []


def test_a_source_that_no_longer_answers_is_not_asked_for_each_layer(
    project: Path, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(lambda _: pytest.fail("it was asked"))
    fake.failed.add("oras://r/x")
    with pytest.raises(Made):
        build(project, open_cache(tmp_path / "new"), fake, lines, monkeypatch)
    assert lines.steps == []


def test_a_full_disk_ends_the_build_and_leaves_nothing(
    project: Path, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = open_cache(tmp_path / "new")
    with pytest.raises(DiskFullError, match=r"^disk full: "):
        build(project, cache, Fake(fail), lines, monkeypatch)
    assert list((cache.root / "layers").iterdir()) == list((cache.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("proxy", ["http://kim:open-sesame@p.example.org:1", "http://p.example.org:1"])
def test_a_layer_is_marked_that_was_built_with_a_password_at_hand(
    project: Path, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    cache = open_cache(tmp_path / "new")
    whole = plan(project, cache)

    def make(_: Builder, container: Container, *__: object) -> Path:
        (container.work / "made").write_bytes(UPPER)
        return container.work / "made"

    monkeypatch.setattr(Builder, "_make_content", make)
    monkeypatch.setattr(Builder, "_remember_passes", lambda *_: None)
    target, host = cache.layers.path(whole.keys[1], False), BuildHost({}, (), None, {"http_proxy": proxy})
    with ExitStack() as used:
        Builder(cache, ENGINE, host, lines)._make_layer(whole, whole.layers[1], [], target, used)
    # What earlier versions of ctrain read has nothing new unless it must.
    expected = {"digest", "size", "built", *(["private"] if "sesame" in proxy else [])}
    assert set(json.loads(target.with_suffix(".json").read_text())) == expected


def test_damaged_logins_end_no_build(project: Path, tmp_path: Path, where: str, lines: Lines, registry: Front) -> None:
    registry.stand = lambda _: Answer(401, {"WWW-Authenticate": 'Basic realm="x"'}, b"{}")
    (tmp_path / "config.json").write_text("{")

    def damaged() -> RegistryClient:
        return RegistryClient({"DOCKER_CONFIG": str(tmp_path)}, timeout=5, pause=lambda _: None)

    found = offered(SharedLayers((where,), client=damaged), project, open_cache(tmp_path / "new"), lines.note)
    assert [part.offer for part in found] == [None, None]
    assert len(lines.notes) == 1 and "is not a valid file of logins" in lines.notes[0]

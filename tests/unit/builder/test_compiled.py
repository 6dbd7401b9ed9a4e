from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctrain_builder.build import Builder, StepFailed
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache import compiled, eviction
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.layers import layer, workspace
from ctrain_builder.layers.container import Container
from ctrain_builder.layers.failure import Failure
from ctrain_builder.layers.workspace import Workspace
from ctrain_builder.plan import build_plan
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError

RECIPE = "c" * 64
WHEEL, OPERATOR = "horovod-1f/horovod-0.28.1.whl", "operators-1f/deepspeed/ops/it.so"


class Builds:
    """Builds of one layer after the other, with a %post that leaves files below /mnt."""

    def __init__(self, root: Path) -> None:
        self.cache, self.work = open_cache(root / "cache"), root / "work"
        self.work.mkdir()
        self.mnt, self.directory = self.work / "mnt", self.work / "mnt/compiled"
        self.start()

    def start(self, recipe: str = RECIPE) -> dict[str, tuple[str, int]]:
        """A build begins. What %post sees."""
        shutil.rmtree(self.mnt, ignore_errors=True)
        self.directory.mkdir(parents=True)
        compiled.offer(self.cache, recipe, self.mnt)
        files = (path for path in self.directory.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.directory)): (path.read_text(), path.stat().st_mode & 0o777) for path in files
        }

    def post(self, **files: str) -> None:
        for name, text in files.items():
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_text(text)

    def succeed(self) -> None:
        compiled.keep(self.cache, RECIPE, self.work, self.mnt)

    def keep(self, **files: str) -> None:
        self.post(**files)
        self.succeed()

    @property
    def file(self) -> Path:
        return compiled.path_of(self.cache, RECIPE)


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


def test_the_next_build_gets_what_one_has_kept(builds: Builds) -> None:
    builds.post(**{WHEEL: "one", OPERATOR: "two"})
    (builds.directory / OPERATOR).chmod(0o750)
    (builds.directory / WHEEL).chmod(0o640)
    builds.succeed()
    assert builds.start() == {WHEEL: ("one", 0o640), OPERATOR: ("two", 0o750)}


def test_what_a_build_has_removed_is_kept_no_more(builds: Builds) -> None:
    """What was compiled with other packages."""
    builds.keep(**{WHEEL: "one"})
    builds.start()
    shutil.rmtree((builds.directory / WHEEL).parent)
    builds.keep(**{OPERATOR: "two"})
    assert [*builds.start()] == [OPERATOR]


def test_a_build_that_leaves_nothing_keeps_nothing(builds: Builds) -> None:
    builds.succeed()
    assert list((builds.cache.root / "compiled").iterdir()) == []


def test_no_other_recipe_gets_it(builds: Builds) -> None:
    builds.keep(**{WHEEL: "one"})
    assert builds.start(recipe="d" * 64) == {}


@pytest.mark.parametrize("damage", ["a bit", "a part", "no record", "another's record", "a damaged record"])
def test_what_is_damaged_is_not_offered(builds: Builds, damage: str) -> None:
    builds.keep(**{WHEEL: "one" * 1000})
    content, record = bytearray(builds.file.read_bytes()), builds.file.with_suffix(".json")
    if damage == "a bit":
        content[700] ^= 1
        builds.file.write_bytes(content)
    elif damage == "a part":
        builds.file.write_bytes(content[:-1])
    elif damage == "no record":  # a crash between the two
        record.unlink()
    elif damage == "another's record":
        record.write_text(record.read_text().replace("sha256:", "sha256:0"))
    else:
        record.write_text("{")
    assert builds.start() == {}
    builds.keep(**{WHEEL: "again"})
    assert [*builds.start()] == [WHEEL]


def test_nothing_is_put_anywhere_else(builds: Builds, tmp_path: Path) -> None:
    """Whatever another user of a group's cache has made."""
    made, file = builds.work / "made.tar", tmp_path / "x"
    file.write_text("x")
    with tarfile.open(made, "w") as tar:
        for name in ("../../../up", "a/../../../../up", "/absolute"):
            member = tar.gettarinfo(file)
            member.name = name
            with file.open("rb") as content:
                tar.addfile(member, content)
    builds.cache.layers.add(made, builds.file, "")
    assert [*builds.start()] == ["absolute"]
    assert not (tmp_path / "up").exists() and not (tmp_path.parent / "up").exists()


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd"), lambda path: path.touch(mode=0o200)]
)
def test_nothing_is_kept_if_not_all_of_it_are_files_that_can_be_read(
    builds: Builds, make: Callable[[Path], None]
) -> None:
    """Half of what was compiled would be taken for the whole; and a link may lead to a file of the host."""
    builds.post(**{WHEEL: "one"})
    make(builds.directory / "it")
    builds.succeed()
    assert list((builds.cache.root / "compiled").iterdir()) == []


def test_a_link_in_the_place_of_the_directory_ends_the_build(builds: Builds, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("of the host")
    builds.directory.rmdir()
    builds.directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match="must be a directory, not a link"):
        builds.succeed()
    assert not builds.file.exists()


def test_a_build_without_the_directory(builds: Builds) -> None:
    """%post may remove it."""
    builds.directory.rmdir()
    builds.succeed()
    assert not builds.file.exists()


def test_it_is_evicted_as_layers_are(builds: Builds) -> None:
    builds.keep(**{WHEEL: "one"})
    below = builds.cache.layers.path("k", False)
    below.write_bytes(bytes(10))
    os.utime(below, (2, 2))
    os.utime(builds.file, (1, 1))
    with builds.cache.locks.use(builds.file):
        os.utime(builds.file, (1, 1))
        assert eviction.evict(builds.cache, 0) == builds.file.stat().st_size, "a build reads it"
    assert eviction.evict(builds.cache, 0) == 0
    assert list((builds.cache.root / "compiled").iterdir()) == []


def test_an_offer_is_a_use(builds: Builds) -> None:
    builds.keep(**{WHEEL: "one"})
    os.utime(builds.file, (1, 1))
    builds.start()
    assert builds.file.stat().st_mtime > 1


def test_a_cache_of_an_earlier_ctrain_gets_the_directory(tmp_path: Path) -> None:
    root = open_cache(tmp_path / "cache").root
    (root / "compiled").rmdir()
    assert eviction.large_files(Cache(root)) == []
    assert (open_cache(root).root / "compiled").is_dir()


class Making:
    """The middle one of an image's three layers, whose %post compiles what it does not find, is built."""

    def __init__(self, project: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
        images = project / "definitions/images.yaml"
        images.write_text(images.read_text().replace("upper]", "upper, top]"))
        shutil.copytree(project / "definitions/upper", project / "definitions/top")
        (project / "definitions/top/upper.def").rename(project / "definitions/top/top.def")
        self.project, self.cache, self.number, self.proxy = project, cache, 1, "http://p.example.org:1"
        self.seen: list[list[str]] = []
        self.passes: Callable[[], dict[Any, Any]] = dict
        self.make_plan()
        for part in self.plan.layers:
            path = cache.layers.path(part.key, part.definition.is_base)
            path.touch()
            path.with_suffix(".json").write_text('{"digest": "sha256:1", "size": 0, "built": "2026-11-24T00:00:00Z"}')
        monkeypatch.setattr(layer, "make", self._make)
        monkeypatch.setattr(Builder, "_test_layer", lambda *_: self.passes())
        monkeypatch.setattr(Builder, "_remember_passes", lambda *_: None)

    def make_plan(self) -> None:
        spec = image_spec.find_spec(self.project / "definitions", "small")
        self.plan = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: False, lambda _: "")

    def _make(self, container: Container, _part: object, _below: object, prepared: Workspace, _log: Path) -> Path:
        there = prepared.mnt_dir / compiled.DIRECTORY
        self.seen.append([path.name for path in there.iterdir()])
        (there / "wheel").write_text("compiled")
        (container.work / "made").write_bytes(b"hsqs")
        return container.work / "made"

    def record_below(self, **facts: object) -> None:
        base = self.cache.layers.path(self.plan.keys[0], True).with_suffix(".json")
        base.write_text(json.dumps({**json.loads(base.read_text()), **facts}))

    def build(self, not_before: str = "") -> list[str]:
        """Names of what is kept."""
        step = SimpleNamespace(end=lambda *_: None)
        progress: Any = SimpleNamespace(begin=lambda *_: step, tick=lambda: None)
        host = BuildHost({}, (), None, {"http_proxy": self.proxy})
        part = replace(self.plan.layers[self.number], not_before=not_before)
        if self.number == len(self.plan.layers) - 1:
            self.plan = replace(self.plan, layers=(*self.plan.layers[:-1], part))
        below = [self.cache.layers.path(part.key, part.definition.is_base) for part in self.plan.layers[: self.number]]
        builder, target = Builder(self.cache, Engine("apptainer", "/nowhere", "1.4.5"), host, progress), below[0]
        with ExitStack() as used:
            builder._make_layer(self.plan, part, below, target.with_name("new.sqsh"), used)
        return sorted(path.name for path in (self.cache.root / "compiled").iterdir())


@pytest.fixture
def making(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Making:
    return Making(project, open_cache(tmp_path / "cache"), monkeypatch)


def test_a_layer_that_is_built_and_tested_keeps_what_it_has_compiled_for_the_next_build(making: Making) -> None:
    recipe = making.plan.layers[1].recipe
    assert making.build() == [f"{recipe}.json", f"{recipe}.tar"]
    path = making.project / "definitions/upper/upper.def"
    path.write_text(path.read_text().replace("%test\n    true", "%test\n    test 1 = 1"))
    making.make_plan()
    making.build()
    assert making.seen == [[], ["wheel"]]


def test_rebuild_compiles_again(making: Making) -> None:
    making.build()
    assert len(making.build(not_before="2026-11-24T00:00:00Z")) == 2
    assert making.seen == [[], []]


def test_the_topmost_layer_keeps_nothing(making: Making) -> None:
    """Its test runs in the image, later."""
    making.number = 2
    assert making.build() == []


def test_a_layer_whose_test_fails_keeps_nothing(making: Making, tmp_path: Path) -> None:
    def fail() -> dict[Any, Any]:
        raise StepFailed("definition upper failed in %test", Failure(tmp_path / "log", ()))

    making.passes = fail
    with pytest.raises(StepFailed):
        making.build()
    assert list((making.cache.root / "compiled").iterdir()) == []


@pytest.mark.parametrize(
    "facts", [{"origin": "oras://r.example.org/layers"}, {"private": True}, {"digest": 5}], ids=str
)
def test_what_was_compiled_on_a_layer_of_others_or_a_private_one_is_not_kept(
    making: Making, facts: dict[str, object]
) -> None:
    """The registry is named today, and perhaps not tomorrow; the last one is not known at all."""
    making.record_below(**facts)
    assert making.build() == []


def test_what_could_have_read_a_password_of_the_build_host_is_not_kept(making: Making) -> None:
    making.proxy = "http://kim:open-sesame@p.example.org:1"
    assert making.build() == []


def test_plain_workspaces_have_the_directory(tmp_path: Path) -> None:
    prepared = workspace.prepare(tmp_path, BuildHost({}, (), None, {}))
    assert list((prepared.mnt_dir / compiled.DIRECTORY).iterdir()) == []

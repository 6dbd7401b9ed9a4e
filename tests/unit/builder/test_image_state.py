"""What each verb does with an image, by what has changed since it was built and tested: the table that
docs/architecture.md prints. Layers and images are made without an engine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ctrain_builder.build import Builder
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.files import manifest_writer
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.image import sbom
from ctrain_builder.image.state import CachedImage
from ctrain_builder.layers.container import Container
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan, PlannedLayer
from ctrain_builder.store.init import init_store
from ctrain_builder.testing import record, reuse, tests
from ctrain_builder.testing.reuse import Stack
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.manifest import TestResult as Result
from samples import built_image

ARCHITECTURE = Path(__file__).parents[3] / "docs/architecture.md"
HEAD = ("what has changed", "state", "`build`", "`test`", "`publish`", "`build --unpublished`")
AGAIN = "2026-11-22T00:00:00Z"  # when a layer was built again


class Bench:
    """The image `small`, built, tested and in a store; then something changes. `did`: what verbs made."""

    def __init__(self, ctrain: Callable[..., int], project: Path, root: Path, make: Callable[..., Manifest]) -> None:
        self.ctrain, self.project, self.root, self.make = ctrain, project, root, make
        self.cache = open_cache(root / "cache")
        self.did: list[str] = []
        self.failing = ""
        self.options: tuple[str, ...] = ()

    @property
    def plan(self) -> BuildPlan:
        return built_image.plan(self.project / "definitions", given=dict(word.split("=") for word in self.options))

    @property
    def image(self) -> Path:
        return CachedImage(self.cache, self.plan.spec).path

    @property
    def manifest(self) -> Path:
        return self.image.with_suffix(".json")

    def make_layers(self, plan: BuildPlan) -> Stack:
        if any(not part.exists for part in plan.layers):
            self.did.append("layers")
        for part in plan.layers:
            if part.renewal:
                self.rebuild(part)
        paths = tuple(self.cache.layers.path(part.key, part.definition.is_base) for part in plan.layers)
        digests = (hashlib.sha256(part.name.encode()).hexdigest() for part in plan.layers)
        return Stack(paths, tuple(LayerContent(f"sha256:{digest}", 1) for digest in digests))

    def assemble(self, plan: BuildPlan) -> Manifest:
        self.did.append("image")
        built_image.put(self.cache, plan, self.make)
        return record.read(self.manifest)

    def test(self, check: ImageTest) -> Result:
        if self.did[-1:] != ["tests"]:
            self.did.append("tests")
        return Result(check.name, check.name != self.failing, "1.0")

    def change(self, file: str, old: str, new: str) -> None:
        """Of the definitions."""
        path = self.project / "definitions" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def rebuild(self, part: PlannedLayer, **content: str) -> None:
        """Record that a layer was built again, for another image."""
        known = self.cache.layers.known_content(part.key, part.definition.is_base)
        assert known
        path = self.cache.layers.path(part.key, part.definition.is_base).with_suffix(".json")
        self.cache.files.write(path, asdict(replace(known, built=AGAIN, **content)))

    def verb(self, verb: str, *options: str) -> str:
        """What a verb did, or that it refused, with its exit code."""
        self.did.clear()
        arguments = [word for option in self.options for word in ("--build-arg", option)]
        code = self.ctrain(verb, "small", *arguments, *options)
        return f"refuses ({code})" if code else ", ".join(self.did) or "nothing"


def _never(bench: Bench) -> None:
    bench.manifest.unlink()
    bench.image.unlink()


def _not_tested(bench: Bench) -> None:
    manifest_writer.write(bench.manifest, replace(record.read(bench.manifest), tests=()))


def _failed(bench: Bench) -> None:
    manifest = record.read(bench.manifest)
    failed = replace(manifest.tests[0], passed=False)
    manifest_writer.write(bench.manifest, replace(manifest, tests=(failed, *manifest.tests[1:])))


def _engine(bench: Bench) -> None:
    engine = bench.root / "bin/apptainer"
    engine.write_text(engine.read_text().replace("1.4.5", "1.5.0"))


def _manifest_damaged(bench: Bench) -> None:
    bench.manifest.write_text("{}")


def _cut(bench: Bench) -> None:
    bench.image.write_bytes(bench.image.read_bytes()[:-1])


def _altered(bench: Bench) -> None:
    bench.image.write_bytes(bench.image.read_bytes().replace(b"upper", b"UPPER"))


def _base_evicted(bench: Bench) -> None:
    base = bench.cache.layers.path(bench.plan.layers[0].key, True)
    base.unlink()
    base.with_suffix(".json").unlink()


def _evicted(bench: Bench) -> None:
    for part in bench.plan.layers:
        path = bench.cache.layers.path(part.key, part.definition.is_base)
        path.unlink()
        path.with_suffix(".json").unlink()


def _change(file: str, old: str, new: str) -> Callable[[Bench], None]:
    return lambda bench: bench.change(file, old, new)


NEW = "layers, image, tests"
Row = tuple[str, Callable[[Bench], object], str, str, str, str, str]
TABLE: Sequence[Row] = (
    ("nothing", lambda _: None, "tested", "nothing", "nothing", "publishes", "nothing"),
    ("it was removed from the cache", _never, "planned", "image, tests", "refuses (78)", "refuses (78)", "nothing"),
    (
        "only its manifest is left",
        lambda b: b.image.unlink(),
        "planned",
        "image, tests",
        "refuses (78)",
        "refuses (78)",
        "nothing",
    ),
    (
        "only its file is left",
        lambda b: b.manifest.unlink(),
        "planned",
        "image, tests",
        "refuses (78)",
        "refuses (78)",
        "nothing",
    ),
    ("it was built with `--tests later`", _not_tested, "built", "tests", "tests", "refuses (78)", "nothing"),
    ("a test has failed", _failed, "failed", "tests", "tests", "refuses (78)", "nothing"),
    ("another engine", _engine, "built", "tests", "tests", "publishes", "nothing"),
    ("a `%post`", _change("upper/upper.def", "echo", "printf"), "planned", NEW, "refuses (78)", "refuses (78)", NEW),
    (
        "a `%test`",
        _change("upper/upper.def", "    true\n", "    :\n"),
        "planned",
        NEW,
        "refuses (78)",
        "refuses (78)",
        NEW,
    ),
    (
        "what images.yaml declares of it",
        _change("images.yaml", "    stack: s\n", '    stack: s\n    tags: {"1.0": {python: "3.11"}}\n'),
        "built",
        "tests",
        "tests",
        "refuses (78)",
        "nothing",
    ),
    (
        "a `--build-arg`",
        lambda b: setattr(b, "options", ("COLOUR=blue",)),
        "planned",
        NEW,
        "refuses (78)",
        "refuses (78)",
        NEW,
    ),
    (
        "its base was built again: other packages",
        lambda b: b.rebuild(b.plan.layers[0], digest="sha256:other"),
        "planned",
        NEW,
        "refuses (78)",
        "refuses (78)",
        "nothing",
    ),
    (
        "its base was built again: the same",
        lambda b: b.rebuild(b.plan.layers[0]),
        "planned",
        "layers",
        "refuses (78)",
        "refuses (78)",
        "nothing",
    ),
    ("its base was evicted from the cache", _base_evicted, "tested", "nothing", "nothing", "publishes", "nothing"),
    ("its layers were evicted from the cache", _evicted, "tested", "nothing", "nothing", "publishes", "nothing"),
    (
        "its manifest was damaged",
        _manifest_damaged,
        "corrupt",
        "image, tests",
        "refuses (78)",
        "refuses (69)",
        "nothing",
    ),
    ("its file was cut short", _cut, "corrupt", "image, tests", "refuses (78)", "refuses (69)", "nothing"),
    ("bytes of its file were altered", _altered, "tested", "nothing", "nothing", "refuses (69)", "nothing"),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache and the stores of the first bench, from which all others start."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def bench(
    kept: Path,
    ctrain: Callable[..., int],
    project: Path,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    bench = Bench(ctrain, project, tmp_path, make_manifest)

    def run(_container: Container, _image: Path, check: ImageTest, _log: Path, _overlays: Sequence[str] = ()) -> Result:
        return bench.test(check)

    def make_layers(_self: Builder, plan: BuildPlan, _flat: bool, _used: contextlib.ExitStack) -> Stack:
        return bench.make_layers(plan)

    def assemble(_self: Builder, plan: BuildPlan, *_: object) -> Manifest:
        return bench.assemble(plan)

    monkeypatch.setattr(tests, "run", run)
    monkeypatch.setattr(tests, "base_facts", lambda *_: {})
    monkeypatch.setattr(tests, "first_failing_layer", lambda *_: "upper")
    monkeypatch.setattr(reuse, "needed_layers", lambda *_: 2)
    monkeypatch.setattr(sbom, "require", lambda: None)
    monkeypatch.setattr(Builder, "_make_layers", make_layers)
    monkeypatch.setattr(Builder, "_assemble", assemble)
    monkeypatch.setenv("CTRAIN_SITE", "local")
    monkeypatch.setenv("CTRAIN_STORE", str(tmp_path / "had"))
    if any(kept.iterdir()):
        shutil.copytree(kept, tmp_path, symlinks=True, dirs_exist_ok=True)
        return bench
    for name in ("had", "store"):
        init_store(tmp_path / name)
    built_image.put(bench.cache, bench.plan, make_manifest)
    assert bench.verb("test") == "tests"
    assert bench.ctrain("publish", "small", "--store", str(tmp_path / "had")) == 0
    for name in ("cache", "had", "store"):
        shutil.copytree(tmp_path / name, kept / name, symlinks=True)
    return bench


@pytest.mark.parametrize("verb", HEAD[2:])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_what_each_verb_does(bench: Bench, row: Row, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, change, state, *answers = row
    change(bench)
    capsys.readouterr()
    if verb == HEAD[-1]:  # which often does nothing: a bench serves both
        assert bench.ctrain("build", "small", "--plan", "--json", *_arguments(bench)) == 0
        (planned,) = json.loads(capsys.readouterr().out)["images"]
        stage = CachedImage(bench.cache, bench.plan.spec).state(_renewed_plan(bench), find_engine()).stage.value
        assert (stage, planned["needs_build"]) == (state, state != "tested")
    answer = answers[HEAD[2:].index(verb)]
    if verb == "`publish`":
        done = bench.verb("publish", "--store", str(bench.root / "store"))
        assert (done if done != "nothing" else "publishes") == answer
        assert len(list((bench.root / "store").glob("*.json"))) == (2 if answer == "publishes" else 1)
    else:
        assert bench.verb(*verb.strip("`").split()) == answer
    if verb == "`build`":
        assert bench.verb("build") == "nothing", "a build leaves nothing to do"


def _arguments(bench: Bench) -> list[str]:
    return [word for option in bench.options for word in ("--build-arg", option)]


def _renewed_plan(bench: Bench) -> BuildPlan:
    """The plan as verbs make it: with the layers that are to be built again."""

    def built(part: PlannedLayer) -> str:
        return bench.cache.layers.built(part.key, part.definition.is_base)

    there = [
        replace(part, exists=bench.cache.layers.has(part.key, part.definition.is_base)) for part in bench.plan.layers
    ]
    return build_plan.renew(replace(bench.plan, layers=tuple(there)), built, lambda _: ("", ""))


def test_the_table_is_that_of_the_documentation() -> None:
    lines = [f"| {' | '.join(row)} |" for row in (HEAD, *((row[0], *row[2:]) for row in TABLE))]
    table = "\n".join([lines[0], "|---" * len(HEAD) + "|", *lines[1:]])
    assert table in ARCHITECTURE.read_text(encoding="utf-8")

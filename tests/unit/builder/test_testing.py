"""Which tests of an image run, with tests that start nothing; for real: tests/integration/test_unchanged_tests.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import pytest

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.layers.container import Container
from ctrain_builder.plan import build_plan
from ctrain_builder.progress import Step, StepName
from ctrain_builder.testing import reuse, run_tests, tests
from ctrain_builder.testing.reuse import Stack
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.store.manifest import TestResult as Result

CHECKS = (
    ImageTest("own", ("own",)),
    ImageTest("all", ("all",), all_layers=True),
    ImageTest("always", ("always",), reusable=False),
)


class Told:
    """A progress that keeps the outcomes."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def expect(self, _steps: Mapping[StepName, float], _basis: str) -> None: ...

    def begin(self, _kind: str, name: str, _log: Path, _expected: Optional[float] = None) -> Step:
        told = self

        class One:
            def end(self, outcome: str, _size: Optional[int] = None) -> None:
                told.outcomes[name] = outcome

        return One()

    def done(self, _kind: str, name: str, outcome: str, _size: Optional[int] = None) -> None:
        self.outcomes[name] = outcome

    def tick(self) -> None: ...
    def note(self, _text: str) -> None: ...


class Bench:
    """An image of a base and a private layer; `failing` are the tests that fail."""

    def __init__(self, project: Path, cache: Cache) -> None:
        self.cache, self.project = cache, project
        self.failing: set[str] = set()

    def run(self, *digests: str, rerun: bool = False) -> dict[str, str]:
        """Test -> outcome for an image whose layers have these contents."""
        spec = image_spec.find_spec(self.project / "definitions", "small")
        planned = build_plan.plan_image(spec, {}, {}, "amd64", lambda *_: True, lambda _: "")
        stack = Stack((Path("a.sif"), Path("b.sqsh")), tuple(LayerContent(digest, 1) for digest in digests))
        container = Container(Engine("apptainer", "/nowhere", "1.4.5"), self.cache.root, lambda: None)
        told = Told()
        tester = run_tests.Tester(self.cache, container, told, planned, stack, False)
        tester.run(Path("x.sif"), (), lambda _: None, rerun, 2)
        return told.outcomes


@pytest.fixture
def bench(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(project, open_cache(tmp_path / "cache"))

    def run(_container: Container, _image: Path, check: ImageTest, _log: Path, _overlays: Sequence[str] = ()) -> Result:
        return Result(check.name, check.name not in bench.failing, "1.5")

    monkeypatch.setattr(tests, "checks", lambda *_: CHECKS)
    monkeypatch.setattr(tests, "run", run)
    monkeypatch.setattr(tests, "base_facts", lambda *_: {})
    monkeypatch.setattr(reuse, "surroundings", lambda _: ("engine",))
    monkeypatch.setattr(reuse, "engine_name", lambda _: "engine")
    monkeypatch.setattr(reuse, "needed_layers", lambda *_: 1)
    return bench


PASSED, UNCHANGED = "passed", run_tests.UNCHANGED


def test_what_has_not_changed_is_not_run_again(bench: Bench) -> None:
    assert bench.run("a", "b") == {"own": PASSED, "all": PASSED, "always": PASSED}
    assert bench.run("a", "b") == {"own": UNCHANGED, "all": UNCHANGED, "always": PASSED}
    assert bench.run("a", "c") == {"own": UNCHANGED, "all": PASSED, "always": PASSED}
    assert bench.run("b", "c") == {"own": PASSED, "all": PASSED, "always": PASSED}
    assert bench.run("a", "b", rerun=True) == {"own": PASSED, "all": PASSED, "always": PASSED}


def test_a_failure_is_named_and_not_remembered(bench: Bench) -> None:
    bench.failing = {"own"}
    for _ in range(2):
        with pytest.raises(run_tests.TestsFailed, match=r"test .own. of image small"):
            bench.run("a", "b")
    bench.failing = set()
    assert bench.run("a", "b")["own"] == PASSED


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "own"}', '{"name": "x", "passed": false, "seconds": "1"}'])
def test_a_result_that_cannot_be_read_is_none(text: str, bench: Bench) -> None:
    bench.run("a", "b")
    for path in (bench.cache.root / "facts").iterdir():
        if '"passed"' in path.read_text():
            path.write_text(text)
    assert bench.run("a", "b") == {"own": PASSED, "all": PASSED, "always": PASSED}


def test_durations_are_kept(bench: Bench) -> None:
    bench.run("a", "b")
    spec = image_spec.find_spec(bench.project / "definitions", "small")
    assert bench.cache.memory.durations(spec) == {"test own": 1.5, "test all": 1.5, "test always": 1.5}

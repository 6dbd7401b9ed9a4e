"""Which results of tests hold, from `ctrain test` to `ctrain publish`, with an image that was built and an engine that
does nothing; for real: tests/integration/test_unchanged_tests.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_builder.cache.cache_root import CACHE_MARKER, open_cache
from ctrain_builder.files import manifest_writer
from ctrain_builder.image import sbom
from ctrain_builder.layers.container import Container
from ctrain_builder.store.init import init_store
from ctrain_builder.testing import reuse, tests
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.manifest import TestResult as Result
from samples import built_image

MATRIX = '    horovod: [PyTorch, MPI]\n    tags: {"1.0": {python: "3.11"}}\n'
OURS = {"layers mounted", "as declared", "imports", "torch unchanged", "horovodrun -cb"}
OURS |= {"all-reduce by MPI", "%test of upper"}


class Image:
    """The image `small` in a cache. `ran` are the tests that ran since it was last asked; `failing` those that fail."""

    def __init__(self, ctrain: Callable[..., int], project: Path, root: Path, make: Callable[..., Manifest]) -> None:
        self.ctrain, self.project, self.root, self.make = ctrain, project, root, make
        self.failing: set[str] = set()
        self.interrupted = ""
        self._ran: set[str] = set()
        catalog = project / "definitions/images.yaml"
        catalog.write_text(catalog.read_text().rstrip() + "\n" + MATRIX)
        self.manifest_file = root / "cache/images/small_1.0-s.json"

    def assemble(self) -> None:
        """Put the planned image into the cache, as a build does that tests later."""
        built_image.put(open_cache(self.root / "cache"), built_image.plan(self.project / "definitions"), self.make)

    def run(
        self, _container: Container, _image: Path, check: ImageTest, _log: Path, _overlays: Sequence[str] = ()
    ) -> Result:
        if check.name == self.interrupted:
            raise KeyboardInterrupt
        if check.skip:
            return Result(check.name, False, "0.0", check.skip)
        self._ran.add(check.name)
        return Result(check.name, check.name not in self.failing, "1.5")

    @property
    def ran(self) -> set[str]:
        ran, self._ran = self._ran, set()
        return ran

    def results(self) -> dict[str, dict[str, Any]]:
        return {test["name"]: test for test in json.loads(self.manifest_file.read_text())["tests"]}

    def publish(self, *options: str) -> int:
        return self.ctrain("publish", "small", "--store", str(self.root / "store"), *options)

    def change(self, file: str, old: str, new: str) -> None:
        path = self.project / "definitions" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def image(
    ctrain: Callable[..., int],
    project: Path,
    tmp_path: Path,
    make_manifest: Callable[..., Manifest],
    monkeypatch: pytest.MonkeyPatch,
) -> Image:
    image = Image(ctrain, project, tmp_path, make_manifest)
    monkeypatch.setattr(tests, "run", image.run)
    monkeypatch.setattr(tests, "base_facts", lambda *_: {"torch": "2.13.0", "torchvision": "0.28.0"})
    monkeypatch.setattr(tests, "first_failing_layer", lambda *_: "upper")
    monkeypatch.setattr(reuse, "needed_layers", lambda *_: 2)
    monkeypatch.setattr(sbom, "require", lambda: None)
    monkeypatch.setenv("CTRAIN_DEFINITIONS", str(project / "definitions"))
    init_store(tmp_path / "store")
    image.assemble()
    assert ctrain("test", "small") == 0
    assert image.ran == OURS
    return image


def test_up_to_date_means_that_nothing_runs(image: Image) -> None:
    for verb in (("build", "small"), ("test", "small")):
        assert image.ctrain(*verb) == 0
        assert image.ran == set()
    assert image.publish() == 0


def test_after_a_failed_rerun_the_earlier_results_are_gone(image: Image, capsys: pytest.CaptureFixture[str]) -> None:
    image.failing = {"imports"}
    assert image.ctrain("test", "small", "--rerun") == 78
    assert image.results()["imports"]["passed"] is False
    capsys.readouterr()
    assert image.publish() == 78
    refusal = capsys.readouterr().err.strip()
    assert refusal.endswith("image small 1.0 has not passed its tests. Run: ctrain test small:1.0"), refusal
    assert image.ran
    assert image.ctrain("build", "small") == 78
    assert "imports" in image.ran, "that it passed once is not remembered any more"
    image.failing = set()
    assert image.ctrain("test", "small") == 0
    assert image.publish() == 0


def test_an_interrupted_rerun_is_not_a_pass(image: Image) -> None:
    image.interrupted = "%test of upper"
    assert image.ctrain("test", "small", "--rerun") == 130
    assert image.publish() == 78
    image.interrupted = ""
    assert image.ctrain("test", "small") == 0
    assert image.publish() == 0


@pytest.mark.parametrize(
    ("old", "new", "due"),
    [
        ('python: "3.11"', 'python: "3.12"', {"as declared"}),
        ('python: "3.11"', 'python: "3.11", mpi: /opt/hpcx', {"as declared"}),
        ('python: "3.11"', 'python: "3.11", sm: "7.0"', {"as declared"}),
        ('python: "3.11"', 'python: "3.11", constraints: /etc/x', {"as declared"}),
        ("[PyTorch, MPI]", "[PyTorch, MPI, Gloo]", {"horovodrun -cb", "all-reduce by Gloo"}),
    ],
)
def test_a_changed_expectation_is_tested(
    image: Image, old: str, new: str, due: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    image.change("images.yaml", old, new)
    capsys.readouterr()
    assert image.ctrain("build", "--plan", "small") == 0
    assert "changed or not run" in capsys.readouterr().out
    assert image.publish() == 78
    assert "Run: ctrain test small:1.0" in capsys.readouterr().err
    image.failing = due
    assert image.ctrain("build", "small") == 78
    assert image.ran and image.publish() == 78
    image.failing = set()
    assert image.ctrain("build", "small") == 0
    assert image.ran == due
    assert image.publish() == 0


def test_a_new_test_of_a_newer_ctrain_runs_alone(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = tests.checks
    more = ImageTest("new", ("true",))
    monkeypatch.setattr(tests, "checks", lambda *args: (*checks(*args), more))
    assert image.publish() == 78
    assert image.ctrain("build", "small") == 0
    assert image.ran == {"new"}
    assert image.publish() == 0


def test_a_changed_program_runs_the_tests_that_use_it(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    for path in reuse.INSIDE.glob("*.py"):
        (inside / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(reuse, "INSIDE", inside)
    assert image.ctrain("build", "small") == 0
    assert image.ran == set(), "the same programs in another directory"
    with (inside / "horovod_build.py").open("a") as file:
        file.write("# changed\n")
    assert image.publish() == 78
    assert image.ctrain("build", "small") == 0
    assert image.ran == {"horovodrun -cb"}


def test_another_engine_tests_again(image: Image, tmp_path: Path) -> None:
    engine = tmp_path / "bin/apptainer"
    text = engine.read_text()
    engine.write_text(text.replace("1.4.5", "1.5.0"))
    assert image.publish() == 0, "it has passed, and who publishes may have no engine at all"
    assert image.ctrain("build", "small") == 0
    assert image.ran == OURS
    assert image.results()["imports"]["engine"].startswith("apptainer 1.5.0")
    engine.write_text(text)
    assert image.ctrain("build", "small") == 0
    assert image.ran == {"layers mounted"}, "the others' results with the first engine are remembered"


def test_results_of_earlier_versions_are_unknown_once(image: Image) -> None:
    data = json.loads(image.manifest_file.read_text())
    del data["checksum"]
    for test in data["tests"]:
        del test["fingerprint"], test["engine"]
    data["checksum"] = manifest_writer.checksum(data)
    image.manifest_file.write_text(json.dumps(data))
    assert image.publish() == 78
    assert image.ctrain("test", "small") == 0
    assert image.ran == {"layers mounted"}
    assert image.publish() == 0


def test_a_published_manifest_has_the_fields_that_earlier_versions_know(image: Image) -> None:
    assert image.publish() == 0
    [path] = (image.root / "store").glob("small_*.json")
    assert all(set(test) == {"name", "passed", "seconds", "skipped"} for test in json.loads(path.read_text())["tests"])


@pytest.mark.parametrize("gpus", [1, 2])
def test_what_could_not_be_tested_without_a_gpu_is_due_with_one(
    image: Image, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {"torch": "2.13.0", "torchvision": "0.28.0", "cuda": "12.6"}
    monkeypatch.setattr(tests, "base_facts", lambda *_: base)
    for path in (image.root / "cache/facts").iterdir():
        path.unlink()
    count: list[Optional[int]] = [0]
    monkeypatch.setattr("ctrain_builder.testing.planned_tests.count_gpus", lambda: count[0])
    assert image.ctrain("test", "small") == 0
    assert image.results()["GPU"]["skipped"]
    assert image.publish() == 0
    count[0] = gpus
    assert image.publish() == 0, "where there is no GPU to build with, another machine's does not matter"
    assert image.ctrain("test", "small") == 0
    assert not image.results()["GPU"]["skipped"]
    count[0] = 0
    assert image.ctrain("test", "small") == 0
    assert not image.results()["GPU"]["skipped"], "what was tested once stays tested"
    assert image.publish() == 0


def test_images_and_facts_are_all_that_publishing_elsewhere_takes(image: Image, tmp_path: Path) -> None:
    """As the workflow hands an image over to the runner that sees the store, which builds nothing."""
    other = tmp_path / "other"
    for name in ("images", "facts"):
        shutil.copytree(image.root / "cache" / name, other / name)
    shutil.copy(image.root / "cache" / CACHE_MARKER, other)
    (image.root / "bin/apptainer").unlink()
    assert image.publish("--cache", str(other)) == 0

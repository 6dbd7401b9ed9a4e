from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.build import BuildResult
from ctrain_builder.cli import build as verb
from ctrain_builder.cli.progress import Stopped
from ctrain_builder.image.state import ImageState, Stage
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.progress import Progress
from ctrain_runtime.errors import BuildError, DiskFullError, RegistryError
from ctrain_runtime.store.manifest import Manifest

Ctrain = Callable[..., int]
TESTED = ImageState(Stage.TESTED)


class FakeBuilder:
    """Builds nothing: fails for the tags in `failing`, and counts how many builds run at once."""

    failing: tuple[str, ...] = ()
    begun: list[str]
    meet: Callable[[], object] = staticmethod(lambda: None)
    manifest: Manifest

    def __init__(self, _cache: object, _engine: object, _site: object, progress: Progress, *_: object) -> None:
        self.progress = progress

    def build(self, plan: BuildPlan) -> BuildResult:
        self.begun.append(plan.spec.title)
        step = self.progress.begin("layer", "base", Path("a.log"))
        type(self).meet()
        if plan.spec.tag in self.failing:
            raise (BuildError if plan.spec.tag == "1.0" else DiskFullError)(f"{plan.spec.title} is broken")
        step.end("built", 7)
        return BuildResult(Path("x.sif"), self.manifest, True, {"layers": 61.0, "image": 2.04, "tests": 3.0}, TESTED)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, make_manifest: Callable[..., Manifest]) -> type[FakeBuilder]:
    fake = type("Fake", (FakeBuilder,), {"begun": [], "manifest": make_manifest()})
    monkeypatch.setattr(verb, "Builder", fake)
    return fake


@pytest.mark.usefixtures("matrix")
def test_a_failure_ends_the_rest_unless_told_to_keep_going(
    ctrain: Ctrain, builder: type[FakeBuilder], capsys: pytest.CaptureFixture[str]
) -> None:
    builder.failing = ("1.0", "7")
    assert ctrain("build", "--all", "--offline") == BuildError.exit_code
    assert builder.begun == ["small 1.0"]
    *_, line, summary = capsys.readouterr().err.splitlines()
    assert line == "ctrain: small 1.0 is broken"
    assert summary == "1 of 3 images failed: small 1.0; 2 images not started (pass --keep-going to continue)"
    builder.begun.clear()
    assert ctrain("build", "--all", "--offline", "--keep-going", "--json") == BuildError.exit_code
    assert builder.begun == ["small 1.0", "small 0.9", "other 7"]
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == "2 of 3 images failed: small 1.0, other 7"
    assert [(image["tag"], image.get("fresh"), image.get("exit_code")) for image in json.loads(out)["images"]] == [
        ("1.0", None, 77),
        ("0.9", True, None),
        ("7", None, 75),
    ]


@pytest.mark.usefixtures("matrix")
def test_jobs_build_at_once_and_name_the_image_in_each_line(
    ctrain: Ctrain, builder: type[FakeBuilder], capsys: pytest.CaptureFixture[str]
) -> None:
    builder.meet = threading.Barrier(3, timeout=60).wait  # passes only if three builds run at the same time
    assert ctrain("build", "--all", "--offline", "--jobs", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert {line[:11] for line in lines} == {"small 1.0  ", "small 0.9  ", "other 7    "}


@pytest.mark.usefixtures("matrix")
def test_an_interrupt_ends_all_builds(ctrain: Ctrain, builder: type[FakeBuilder]) -> None:
    """Both builds wait for ever; one of them is told to stop as by Ctrl-C, the other must be ended by it."""
    ended: list[str] = []
    both = threading.Barrier(2, timeout=60)

    def wait_for_ever(self: FakeBuilder, plan: BuildPlan) -> BuildResult:
        both.wait()
        if plan.spec.tag == "1.0":
            raise KeyboardInterrupt
        try:
            while True:
                self.progress.tick()
        except Stopped:
            ended.append(plan.spec.tag)
            raise

    builder.build = wait_for_ever  # type: ignore[method-assign]  # of a stand-in
    assert ctrain("build", "small:1.0", "small:0.9", "--jobs", "2") == 130
    assert ended == ["0.9"]


@pytest.mark.usefixtures("matrix")
def test_layers_that_do_not_reach_their_registry_are_an_error_of_a_built_image(
    ctrain: Ctrain, builder: type[FakeBuilder], capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends no other build, and a failed build counts more."""
    build = builder.build

    def not_uploaded(self: FakeBuilder, plan: BuildPlan) -> BuildResult:
        return replace(build(self, plan), not_uploaded=RegistryError("r is full"))

    builder.build = not_uploaded  # type: ignore[method-assign]  # of a stand-in
    assert ctrain("build", "small:1.0", "small:0.9", "--json") == RegistryError.exit_code
    out, err = capsys.readouterr()
    assert [line for line in err.splitlines() if line.startswith("ctrain: ")] == [
        "ctrain: the layers of small 1.0 are not shared: r is full",
        "ctrain: the layers of small 0.9 are not shared: r is full",
    ]
    assert "images failed" not in err
    assert [(image["path"], image["exit_code"]) for image in json.loads(out)["images"]] == [("x.sif", 79)] * 2
    builder.failing = ("0.9",)
    assert ctrain("build", "small:1.0", "small:0.9") == DiskFullError.exit_code


@pytest.mark.parametrize(
    ("tests", "seconds", "what"),
    [
        ("kept", {"image": 2.0, "tests": 3.0}, "is built and tested in 5.0 s (image 2.0 s, tests 3.0 s)"),
        ("kept", {"tests": 3.0}, "is tested in 3.0 s (tests 3.0 s)"),
        ("none", {"image": 2.0}, "is built in 2.0 s (image 2.0 s), not tested (run: ctrain test small:1.0)"),
        ("none", {"image": 2.0, "tests": 0.0}, "is built in 2.0 s (image 2.0 s, tests 0.0 s), but has no tests, which"),
        (
            "none",
            {"tests": 0.0},
            "is up to date, nothing to do, but has no tests, which publishing needs (add a %test)",
        ),
    ],
)
def test_an_image_is_tested_or_not_or_has_no_tests(
    ctrain: Ctrain,
    builder: type[FakeBuilder],
    capsys: pytest.CaptureFixture[str],
    tests: str,
    seconds: dict[str, float],
    what: str,
) -> None:
    """One without tests was "tested in 0.1 s, not tested"."""
    manifest = builder.manifest if tests == "kept" else replace(builder.manifest, tests=())
    state = ImageState(Stage.TESTED if tests == "kept" else Stage.BUILT, manifest, untestable=tests == "none")
    built = BuildResult(Path("x.sif"), manifest, True, seconds, state)
    builder.build = lambda *_: built  # type: ignore[method-assign]  # of a stand-in
    assert ctrain("build", "small") == 0
    assert f"small 1.0-s {what}" in capsys.readouterr().out

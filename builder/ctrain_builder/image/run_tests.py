"""Tests an image: those tests whose result still holds are not run again, the others run side by side."""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ctrain_builder.build_cache import Cache
from ctrain_builder.build_plan import BuildPlan
from ctrain_builder.image import reuse, side_by_side, tests
from ctrain_builder.image.reuse import Stack
from ctrain_builder.image.tests import ImageTest
from ctrain_builder.layers.container import Container
from ctrain_builder.progress import Progress
from ctrain_runtime import config
from ctrain_runtime.errors import ConfigError, ImageTestError
from ctrain_runtime.facts import count_gpus
from ctrain_runtime.manifest import TestResult

UNCHANGED = "passed (unchanged)"


class TestsFailed(ImageTestError):
    """The image is there but must not be published; what its tests said is in `log`."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message, f"Log: {log}")
        self.log = log


@dataclass(frozen=True)
class Tester:
    """The tests of the planned image, whose layers are those of `stack`."""

    cache: Cache
    container: Container
    progress: Progress
    plan: BuildPlan
    stack: Stack
    flat: bool

    def run(self, image: Path, rerun: bool, at_once: int) -> list[TestResult]:
        """Run the tests whose results may differ from earlier ones, or all. Raises TestsFailed."""
        checks = list(tests.checks(self.plan, self._facts_of_base(), count_gpus(), self._inherited_tests()))
        marks = {check.name: self._mark(check) for check in checks if check.reusable}
        results = {} if rerun else self._known(marks)
        for name in results:
            self.progress.done("test", name, UNCHANGED)
        due = [check for check in checks if check.name not in results]
        logs = {check.name: self._log(check) for check in due}
        durations = self.cache.durations(self.plan.spec)

        def test(check: ImageTest, tick: side_by_side.Tick) -> TestResult:
            log = logs[check.name]
            step = self.progress.begin("test", check.name, log, durations.get(f"test {check.name}"))
            result = tests.run(replace(self.container, tick=tick), image, check, log)
            if result.passed and check.reusable:
                self.cache.remember_fact(marks[check.name], asdict(result))
            step.end(result.outcome)
            return result

        done = side_by_side.run(due, at_once, test, self.progress.tick)
        self.cache.remember_durations(
            self.plan.spec, {f"test {name}": float(result.seconds) for name, result in done.items() if result.passed}
        )
        for check in due:
            if check.name in done and done[check.name].outcome == "failed":
                raise self._failed(check, logs[check.name])
        results.update(done)
        return [results[check.name] for check in checks]

    def _facts_of_base(self) -> dict[str, str]:
        known = reuse.fingerprint("base", self.stack.digests(1), reuse.surroundings(self.container))
        return self.cache.facts(known, lambda: tests.base_facts(self.container, self.stack.files[0]))

    def _inherited_tests(self) -> dict[str, str]:
        """The %test of each layer that comes from a parent image: what its layer shows and those below it do not."""
        scripts: dict[str, str] = {}
        below = ""
        for count, layer in enumerate(self.plan.layers, 1):
            if layer.part and (script := self._script(count)) != below:
                scripts[layer.name] = below = script
        return scripts

    def _script(self, count: int) -> str:
        """The %test that an image of the lowest `count` layers has."""
        known = reuse.fingerprint("script", self.stack.digests(count))
        found = self.cache.facts(known, lambda: {"script": tests.read_script(self.container, self.stack.below(count))})
        return str(found["script"])

    def _mark(self, check: ImageTest) -> str:
        """The fingerprint of all that the result of a test depends on."""
        count = len(self.stack.files)
        if not check.all_layers:
            count = reuse.needed_layers(self.cache, self.container, self.stack, check.since)
        contents, surroundings = self.stack.digests(count), reuse.surroundings(self.container)
        return reuse.fingerprint("test", check.argv, check.script, contents, self.flat, surroundings)

    def _known(self, marks: dict[str, str]) -> dict[str, TestResult]:
        """The results that are remembered: those of tests that passed."""
        found: dict[str, TestResult] = {}
        for name, mark in marks.items():
            with contextlib.suppress(ConfigError):  # of another version or damaged: the test runs again
                result = config.load(TestResult, self.cache.fact(mark) or {}, mark)
                if result.passed:
                    found[name] = replace(result, name=name)
        return found

    def _failed(self, check: ImageTest, log: Path) -> TestsFailed:
        """The error for a test that failed, with the layer since which it fails."""
        layer = tests.first_failing_layer(
            self.container, self.plan, self.stack.files, check, log.with_suffix(".blame.log")
        )
        since = f"first failing layer: {layer}" if layer else "it passes with the same layers mounted by --overlay"
        return TestsFailed(f"test {check.name!r} of image {self.plan.spec.title} failed; {since}", log)

    def _log(self, check: ImageTest) -> Path:
        name = re.sub(r"\W+", "-", check.name).strip("-")
        return self.cache.log(self.plan.spec, f"test-{name}{'-flat' if self.flat else ''}")

"""Tests an image: those tests whose result still holds are not run again, the others run side by side."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.layers import failure
from ctrain_builder.layers.container import Container
from ctrain_builder.layers.failure import Failure
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.progress import Progress
from ctrain_builder.testing import planned_tests, side_by_side, tests
from ctrain_builder.testing.planned_tests import Questions
from ctrain_builder.testing.record import RecordedTest
from ctrain_builder.testing.reuse import Stack
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.base import config
from ctrain_runtime.errors import ConfigError, ImageTestError

UNCHANGED = "passed (unchanged)"


class TestsFailed(ImageTestError):
    """The image is there but must not be published, as the output of a test tells."""

    def __init__(self, test: str, since: str, output: Failure) -> None:
        super().__init__(f"{test} failed{output}; {since}", f"Log: {output.log}")
        self.output = output


@dataclass(frozen=True)
class Tester:
    """The tests of the planned image, whose layers are those of `stack`."""

    cache: Cache
    container: Container
    progress: Progress
    plan: BuildPlan
    stack: Stack
    flat: bool

    def run(
        self,
        image: Path,
        recorded: Sequence[RecordedTest],
        record: Callable[[Sequence[RecordedTest]], None],
        rerun: bool,
        at_once: int,
    ) -> None:
        """Run the tests whose results may differ from those `recorded` of the image or of others, or all.

        `record` gets none at first, so that whatever ends this leaves no image that seems to have passed; in the end it
        gets all that are known. Raises TestsFailed.
        """
        record(())
        checks = self._checks()
        marks = {check.name: self._mark(check) for check in checks if check.reusable}
        results = {} if rerun else self._known(checks, marks, recorded)
        for name in results:
            self.progress.done("test", name, UNCHANGED)
        due = [check for check in checks if check.name not in results]
        logs = {check.name: self._log(check) for check in due}

        def test(check: ImageTest, tick: side_by_side.Tick) -> RecordedTest:
            return self._run_one(image, check, logs[check.name], marks.get(check.name, ""), tick)

        done = side_by_side.run(due, at_once, test, self.progress.tick)
        self.cache.memory.keep_durations(
            self.plan.spec, {f"test {name}": float(result.seconds) for name, result in done.items() if result.passed}
        )
        results.update(done)
        record([results[check.name] for check in checks if check.name in results])
        for check in due:
            if check.name in done and done[check.name].outcome == "failed":
                raise self._failed(check, logs[check.name])

    def _run_one(self, image: Path, check: ImageTest, log: Path, mark: str, tick: side_by_side.Tick) -> RecordedTest:
        """Run a test; that it has passed is remembered under `mark` ("": it is not reusable)."""
        expected = self.cache.memory.durations(self.plan.spec).get(f"test {check.name}")
        step = self.progress.begin("test", check.name, log, expected)
        if mark:  # if this one fails, that it has passed before says nothing
            self.cache.memory.forget_fact(mark)
        outcome = tests.run(replace(self.container, tick=tick), image, check, log)
        result = planned_tests.identified(outcome, check, self.container.engine)
        if result.passed and mark:
            self.cache.memory.keep_fact(mark, asdict(result))
        step.end(result.outcome)
        return result

    def _checks(self) -> list[ImageTest]:
        questions = Questions(
            base=lambda: tests.base_facts(self.container, self.stack.files[0]),
            script=lambda count: tests.read_script(self.container, self.stack.below(count)),
        )
        return planned_tests.planned(self.cache, self.plan, self.stack.digests(len(self.stack.files)), questions)

    def _mark(self, check: ImageTest) -> str:
        return planned_tests.mark(self.cache, self.container, self.stack, check, self.flat)

    def _known(
        self, checks: Sequence[ImageTest], marks: dict[str, str], recorded: Sequence[RecordedTest]
    ) -> dict[str, RecordedTest]:
        """The results that hold: those recorded of this image, and those remembered of tests that passed in others."""
        results = planned_tests.holding(checks, recorded, self.container.engine)
        for name in marks.keys() - results.keys():
            mark = marks[name]
            with contextlib.suppress(ConfigError):  # of another version or damaged: the test runs again
                result = config.load(RecordedTest, self.cache.memory.fact(mark) or {}, mark)
                if result.passed:
                    results[name] = replace(result, name=name)
        return results

    def _failed(self, check: ImageTest, log: Path) -> TestsFailed:
        """The error for a test that failed, with the layer since which it fails."""
        output = failure.read(log)
        layer = tests.first_failing_layer(
            self.container, self.plan, self.stack.files, check, log.with_suffix(".blame.log")
        )
        since = f"first failing layer: {layer}" if layer else "it passes with the same layers mounted by --overlay"
        return TestsFailed(f"test {check.name!r} of image {self.plan.spec.title}", since, output)

    def _log(self, check: ImageTest) -> Path:
        name = re.sub(r"\W+", "-", check.name).strip("-")
        return self.cache.log(self.plan.spec, f"test-{name}{'-flat' if self.flat else ''}")

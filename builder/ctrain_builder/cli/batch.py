"""Builds several images, one after the other or at once, and tells how each of them ended."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Optional, TextIO

from ctrain_builder.build import BuildResult, StepFailed
from ctrain_builder.cache import estimate
from ctrain_builder.cli.progress import ProgressLines
from ctrain_builder.image.state import Stage
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing.run_tests import TestsFailed
from ctrain_runtime.base.text import format_duration, format_size, pluralize
from ctrain_runtime.errors import CtrainError

_SHOWN_LINES = 15


@dataclass(frozen=True)
class BuildOutcome:
    """What became of an image. With neither of the two it was not begun, because another one had failed. With both, it
    was built, and `error` is why its layers are not in the registry that they were to go to."""

    plan: BuildPlan
    built: Optional[BuildResult] = None
    error: Optional[CtrainError] = None


def run(
    planned: Sequence[BuildPlan],
    build_one: Callable[[ProgressLines, BuildPlan], BuildResult],
    as_json: bool,
    jobs: int = 1,
    keep_going: bool = False,
    secrets: Sequence[str] = (),
) -> int:
    """Build the images and tell what became of them; the exit code of the first failure. As JSON, the only thing on
    stdout is one object. `secrets`: what the log of a running step may still show."""
    outcomes = build(planned, build_one, sys.stderr if as_json else sys.stdout, jobs, keep_going, secrets)
    if as_json:
        print(json.dumps({"images": list(map(_image, outcomes))}, indent=2))
    elif not outcomes:
        print("nothing to build")
    failures = sorted((outcome for outcome in outcomes if outcome.error), key=lambda outcome: bool(outcome.built))
    return next((outcome.error.exit_code for outcome in failures if outcome.error), 0)


def build(
    planned: Sequence[BuildPlan],
    build_one: Callable[[ProgressLines, BuildPlan], BuildResult],
    out: TextIO,
    jobs: int,
    keep_going: bool,
    secrets: Sequence[str] = (),
) -> list[BuildOutcome]:
    """Build the images by `build_one`, `jobs` at once. Successes go to `out`, failures to stderr."""
    jobs = min(jobs, len(planned))
    width = max((len(plan.spec.title) for plan in planned), default=0)
    failed, stop = threading.Event(), threading.Event()

    def one(plan: BuildPlan) -> BuildOutcome:
        if failed.is_set() and not keep_going:
            return BuildOutcome(plan)
        prefix = f"{plan.spec.title:<{width}}  " if len(planned) > 1 else ""
        lines = ProgressLines(out, prefix, live=jobs == 1, stop=stop, secrets=secrets)
        try:
            built = build_one(lines, plan)
        except CtrainError as error:
            failed.set()
            lines.close()
            sys.stderr.write(_complaint(error))
            return BuildOutcome(plan, error=error)
        finally:
            lines.close()
        size = format_size(built.manifest.size)
        lines.note(f"{plan.spec.title}-{plan.spec.stack} {_state(plan, built)}: {built.path} ({size})")
        if built.not_uploaded:
            sys.stderr.write(f"ctrain: the layers of {plan.spec.title} are not shared: {built.not_uploaded}\n")
        return BuildOutcome(plan, built, built.not_uploaded)

    if jobs <= 1:
        return _report_failures([one(plan) for plan in planned])
    with ThreadPoolExecutor(jobs) as pool:
        try:
            return _report_failures(list(pool.map(one, planned)))
        except BaseException:  # as Ctrl-C: the builds that run are to end, before the pool waits for them
            stop.set()
            failed.set()
            raise


def _state(plan: BuildPlan, built: BuildResult) -> str:
    """What became of an image, and what it took."""
    has_no_tests = estimate.TESTS in built.seconds and built.state.untestable
    is_tested = built.state.stage is Stage.TESTED
    hint = "" if is_tested else f", not tested (run: ctrain test {plan.spec.name}:{plan.spec.tag})"
    if has_no_tests:
        hint = ", but has no tests, which publishing needs (add a %test)"
    if not built.fresh or (has_no_tests and estimate.IMAGE not in built.seconds):
        return f"is up to date, nothing to do{hint}"
    parts = ", ".join(f"{kind} {format_duration(seconds)}" for kind, seconds in built.seconds.items())
    total = format_duration(sum(built.seconds.values()))
    what = "tested" if estimate.IMAGE not in built.seconds else "built and tested" if not hint else "built"
    return f"is {what} in {total} ({parts}){hint}"


def _complaint(error: CtrainError) -> str:
    """The error in one line; before it the last lines that the failed command printed."""
    last = error.output.lines[-_SHOWN_LINES:] if isinstance(error, (StepFailed, TestsFailed)) else ()
    return "".join(f"  | {line}\n" for line in last) + f"ctrain: {error}\n"


def _report_failures(outcomes: list[BuildOutcome]) -> list[BuildOutcome]:
    """Of several images, say which have failed."""
    failed = [outcome.plan.spec.title for outcome in outcomes if outcome.error and not outcome.built]
    if failed and len(outcomes) > 1:
        skipped = sum(not (outcome.built or outcome.error) for outcome in outcomes)
        rest = f"; {pluralize(skipped, 'image')} not started (pass --keep-going to continue)" if skipped else ""
        print(
            f"{len(failed)} of {pluralize(len(outcomes), 'image')} failed: {', '.join(failed)}{rest}", file=sys.stderr
        )
    return outcomes


def _image(outcome: BuildOutcome) -> dict[str, Any]:
    spec, built, error = outcome.plan.spec, outcome.built, outcome.error
    data: dict[str, Any] = {"name": spec.name, "tag": spec.tag, "stack": spec.stack}
    if built:
        data |= {"path": str(built.path), "fresh": built.fresh, "manifest": asdict(built.manifest)}
    if error:
        data |= {"error": str(error), "exit_code": error.exit_code}
    return data

"""The tests that a planned image must pass today, and whether recorded results are of them.

A result carries the fingerprint of its test - the command, its script and the programs of ctrain that they name - and
the engine. What the image is made of is in the manifest beside it. So a result holds for as long as all these are the
same, wherever the checkout is, and whichever version of ctrain has run the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.layers.container import Container
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing import reuse, tests
from ctrain_builder.testing.record import RecordedTest
from ctrain_builder.testing.reuse import Stack
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.cluster.machine import count_gpus
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.store.manifest import Manifest, TestResult


class NotRemembered(Exception):
    """The tests cannot be told without asking the image."""


@dataclass(frozen=True)
class Questions:
    """What an image is asked before its tests are known: the facts of its base, and the %test that an image of its
    lowest layers has, by their number."""

    base: Callable[[], dict[str, Any]]
    script: Callable[[int], str]


def _not_remembered(*_: object) -> Any:
    raise NotRemembered


_REMEMBERED = Questions(_not_remembered, _not_remembered)


def planned(cache: Cache, plan: BuildPlan, digests: Sequence[str], questions: Questions) -> list[ImageTest]:
    """The tests of the planned image on this machine; `digests` are of its layers. Answers are kept in the cache."""
    base = base_facts(cache, digests[0], questions.base)
    return list(tests.checks(plan, base, count_gpus(), _inherited(cache, plan, digests, questions)))


def base_facts(cache: Cache, digest: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The facts of the base with this digest, which are asked once."""
    return cache.memory.fact_or(reuse.fingerprint("base", [digest], reuse.programs(tests.UNCHANGED)), ask)


def _inherited(cache: Cache, plan: BuildPlan, digests: Sequence[str], questions: Questions) -> dict[str, str]:
    """The %test of each layer that comes from a parent image: what its layer shows and those below it do not."""
    scripts: dict[str, str] = {}
    below = ""
    for count, layer in enumerate(plan.layers, 1):
        if layer.inherited and (script := _script(cache, digests[:count], questions)) != below:
            scripts[layer.name] = below = script
    return scripts


def _script(cache: Cache, digests: Sequence[str], questions: Questions) -> str:
    """The %test that an image of these layers has."""
    known = reuse.fingerprint("script", list(digests))
    return str(cache.memory.fact_or(known, lambda: {"script": questions.script(len(digests))})["script"])


def fingerprint(check: ImageTest) -> str:
    """Changes with what is tested, and how; not with how many GPUs a machine has."""
    programs = reuse.programs(" ".join((*check.argv, check.script)))
    argv = [word for word in check.argv if not (check.gpu and word.isdecimal())]
    return reuse.fingerprint("test", argv, check.script, check.gpu, programs)


def mark(cache: Cache, container: Container, stack: Stack, check: ImageTest, flat: bool) -> str:
    """The fingerprint of all that the result of a test depends on, in an image of these layers."""
    count = len(stack.files)
    if not check.all_layers:
        count = reuse.needed_layers(cache, container, stack, check.since)
    contents, surroundings = stack.digests(count), reuse.surroundings(container)
    return reuse.fingerprint("result", fingerprint(check), contents, flat, surroundings)


def identified(result: TestResult, check: ImageTest, engine: Engine) -> RecordedTest:
    """The result with what says of which test it is, and by which engine."""
    return RecordedTest(**asdict(result), fingerprint=fingerprint(check), engine=reuse.engine_name(engine))


def holding(
    checks: Iterable[ImageTest], recorded: Iterable[RecordedTest], engine: Optional[Engine]
) -> dict[str, RecordedTest]:
    """Those of an image's recorded results that are of these tests and no failures, by name. `engine`: the one that
    would run them; None for somebody who runs none, and takes results of any engine, and of machines without GPUs."""
    results = {result.name: result for result in recorded}
    return {check.name: results[check.name] for check in checks if _holds(check, results.get(check.name), engine)}


def failed(checks: Optional[Iterable[ImageTest]], recorded: Iterable[RecordedTest]) -> list[str]:
    """The names of those of these tests whose recorded result is a failure; of all that failed where the tests are not
    known."""
    results = {result.name: result.fingerprint for result in recorded if result.outcome == "failed"}
    if checks is None:
        return list(results)
    return [check.name for check in checks if results.get(check.name) == fingerprint(check)]


def _holds(check: ImageTest, result: Optional[RecordedTest], engine: Optional[Engine]) -> bool:
    if result is None or result.outcome == "failed":
        return False
    if result.skipped:
        return bool(check.skip) or (engine is None and check.gpu)
    same_engine = engine is None or result.engine == reuse.engine_name(engine)
    return same_engine and result.fingerprint == fingerprint(check)


def remembered(cache: Cache, plan: BuildPlan, manifest: Manifest) -> Optional[list[ImageTest]]:
    """The tests of an image of the planned layers as they are today. Asks no image: None if the cache does not know."""
    try:
        return planned(cache, plan, [layer.digest for layer in manifest.layers], _REMEMBERED)
    except NotRemembered:
        return None

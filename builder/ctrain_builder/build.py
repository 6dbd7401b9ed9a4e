"""Builds an image: layers -> image -> manifest -> tests. Skips what exists, tells a Progress, prints nothing."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache import cache_space, compiled, estimate, eviction
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import require_overlays
from ctrain_builder.cache.memory import LayerBuild
from ctrain_builder.definitions import lock_file
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.definitions.parent import Parent
from ctrain_builder.files import manifest_writer
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.image import describe, flatten, licenses, lock, sbom
from ctrain_builder.image.assemble import assemble
from ctrain_builder.image.describe import Content
from ctrain_builder.image.state import CachedImage, ImageState, Stage, is_flat
from ctrain_builder.layers import base, failure, inherit, layer, workspace
from ctrain_builder.layers.container import Container, LowerLayers
from ctrain_builder.layers.failure import Failure, SectionFailed
from ctrain_builder.plan.build_plan import MIRROR, BuildPlan, PlannedLayer
from ctrain_builder.progress import Progress, StepName
from ctrain_builder.testing import planned_tests, reuse, tests
from ctrain_builder.testing.record import BuildRecord, RecordedTest
from ctrain_builder.testing.reuse import Stack
from ctrain_builder.testing.run_tests import Tester
from ctrain_builder.testing.tests import ImageTest
from ctrain_runtime.base.text import format_size
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError, ConfigError, CtrainError, DiskFullError, ImageTestError, RegistryError
from ctrain_runtime.store.manifest import TestResult

if TYPE_CHECKING:  # it loads a client of registries, which most builds don't need
    from ctrain_builder.layers.shared_layers import SharedLayers


class WhichTests(enum.Enum):
    """Which tests a build runs: those whose result may have changed, none yet, or all."""

    NEEDED = "needed"
    LATER = "later"
    ALL = "all"


class StepFailed(BuildError):
    """A definition failed, as its output tells."""

    def __init__(self, message: str, output: Failure) -> None:
        super().__init__(f"{message}{output}", f"Log: {output.log}")
        self.output = output


@dataclass(frozen=True)
class BuildResult:
    """A finished image; `fresh` if it was made or tested just now. `seconds` of what was done, by kind of step.
    `state`: how it stands with it now. `not_uploaded`: why its layers did not reach the registry they were to go to."""

    path: Path
    manifest: BuildRecord
    fresh: bool
    seconds: dict[str, float]
    state: ImageState
    not_uploaded: Optional[CtrainError] = None


@dataclass(frozen=True)
class Builder:
    """`flat`: make flat images. `cap`: the size in bytes that the cache is cut down to after a build. `trust`: raises
    CtrainError for a parent image that no image may be built on. `tests_at_once`: how many run side by side. `shared`:
    where layers are taken from, and brought to, besides the cache."""

    cache: Cache
    engine: Engine
    host: BuildHost
    progress: Progress
    flat: bool = False
    cap: Optional[int] = None
    trust: Callable[[Parent], None] = lambda _: None
    tests: WhichTests = WhichTests.NEEDED
    tests_at_once: int = 1
    shared: Optional[SharedLayers] = None

    def build(self, plan: BuildPlan) -> BuildResult:
        """Build what the planned image lacks. Raises BuildError, DiskFullError, ImageTestError, RegistryError."""
        if plan.problem:
            raise plan.problem
        if plan.parent:
            self.trust(plan.parent)
        os.umask(0o022)  # an image must not depend on the umask of who builds it
        try:
            return self._build(plan)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            what = f"disk full: {format_size(cache_space.free(self.cache))} left in {self.cache.root}"
            raise DiskFullError(what, "Free disk space, or pass --cache DIR") from error

    def test(self, plan: BuildPlan) -> BuildResult:
        """Test an image that was built as planned. Raises ImageTestError if it was not, and as `build` does."""
        state = self._image(plan).state(plan, self.engine)
        if not plan.problem and not state.is_as_planned:
            is_corrupt = state.stage is Stage.CORRUPT
            what = "is corrupt" if is_corrupt else "is missing or was built from other definitions"
            hint = f"Run: ctrain build {plan.spec.name}:{plan.spec.tag}"
            raise ImageTestError(f"image {plan.spec.title} in the cache {what} ({state.why})", hint)
        return self.build(plan)

    def _build(self, plan: BuildPlan) -> BuildResult:
        image = self._image(plan)
        times: dict[str, float] = {}
        with self._lock(image.path.stem, "image"), contextlib.ExitStack() as used:
            manifest = self._kept(plan, image, used, self._is_finished)
            fresh = manifest is None
            if manifest is None:
                manifest = self._make(plan, image, used, times)
            problem = None
            if self.shared and self.shared.target and manifest.tested:
                problem = self.shared.upload(plan, manifest, self.cache, self.progress)
            state = image.state(plan.renewed, self.engine)
            self._evict()
        return BuildResult(image.path, manifest, fresh, times, state, problem)

    def _image(self, plan: BuildPlan) -> CachedImage:
        return CachedImage(self.cache, plan.spec, is_flat(plan.spec, self.flat))

    def _is_finished(self, state: ImageState) -> bool:
        if self.tests is WhichTests.NEEDED:
            return state.stage is Stage.TESTED
        return self.tests is WhichTests.LATER

    def _kept(
        self,
        plan: BuildPlan,
        image: CachedImage,
        used: contextlib.ExitStack,
        is_wanted: Callable[[ImageState], bool] = lambda _: True,
    ) -> Optional[BuildRecord]:
        """The manifest of the image if it is the planned one; it and its layers are in use until `used` is closed."""
        with contextlib.ExitStack() as kept:
            if not kept.enter_context(self.cache.locks.use(image.path)):  # first: from here on it can't be evicted
                return None
            state = image.state(plan, self.engine)
            if not state.is_as_planned or not is_wanted(state):
                return None
            for planned in plan.layers:
                kept.enter_context(
                    self.cache.locks.use(self.cache.layers.path(planned.key, planned.definition.is_base))
                )
            used.push(kept.pop_all())
        return state.manifest

    def _make(
        self, plan: BuildPlan, image: CachedImage, used: contextlib.ExitStack, times: dict[str, float]
    ) -> BuildRecord:
        """Build the layers, the image and its manifest unless they exist, and test the image."""
        kept = image.state(plan, self.engine).kept
        expected, basis = estimate.steps(self.cache, plan, kept)
        if self.tests is WhichTests.LATER:
            expected.pop(StepName("test"), None)
        self.progress.expect(expected, basis)
        with _timed(times, "layers"):
            stack = self._make_layers(plan, image.flat, used)
        manifest = self._kept(plan.renewed, image, used)
        if manifest is None:
            with _timed(times, estimate.IMAGE):
                manifest = self._assemble(plan, stack, image, kept, used)
        if self.tests is not WhichTests.LATER:
            with _timed(times, estimate.TESTS):
                manifest = self._test(plan, stack, image.path, manifest)
        steps = {estimate.step(kind, plan, kept): seconds for kind, seconds in times.items() if kind != "layers"}
        self.cache.memory.keep_durations(plan.spec, steps)
        return manifest

    def _make_layers(self, plan: BuildPlan, flat: bool, used: contextlib.ExitStack) -> Stack:
        sbom.require()
        if not all(planned.exists for planned in plan.layers):
            require_overlays(self.cache)
        left = self.cache.work.sweep()
        needed = estimate.space(self.cache, plan, flat, estimate.download(plan))
        what = f"building {plan.spec.title}"
        note = f"{what} is waiting for space that other builds have reserved in {self.cache.root}"
        used.enter_context(
            cache_space.reserve(self.cache, sum(needed), what, lambda: self.progress.note(note), self.progress.tick)
        )
        if flat and not self.flat:
            self.progress.note(f"{plan.spec.title} has more than {flatten.MAX_LAYERS} layers: it is flattened")
        files: list[Path] = []
        contents: list[LayerContent] = []
        with ThreadPoolExecutor(1) as beside:
            for planned in plan.layers:
                below = contents[-1] if contents else LayerContent("", 0)
                if planned.offer and planned.offer.parent != below.digest:
                    planned = replace(planned, offer=None)
                files.append(self._layer(plan, planned, files, max(planned.not_before, below.built), used))
                contents.append(self.cache.layers.content(planned.key, planned.definition.is_base))
                if len(files) == 1:
                    asked = beside.submit(self._ask_base, files[0], contents[0].digest)
        asked.result()
        self._sweep_as_root(left, files[0], plan.spec)
        return Stack(tuple(files), tuple(contents))

    def _ask_base(self, base: Path, digest: str) -> None:
        """Let the tests' question to the base, some seconds, be answered while the layers above it are downloaded."""
        if self.tests is not WhichTests.LATER:
            with contextlib.suppress(BuildError), self.cache.work.create() as work:  # the tests ask again, and tell
                planned_tests.base_facts(self.cache, digest, lambda: tests.base_facts(self._container(work), base))

    def _sweep_as_root(self, directories: list[Path], base: Path, spec: ImageSpec) -> None:
        """Remove the directories of killed builds, which hold files that no longer are this user's own."""
        for directory in directories:
            with contextlib.suppress(BuildError, FileNotFoundError):
                left = [path for path in directory.iterdir() if path.is_dir() and not path.is_symlink()]
                self._container(directory).take_ownership(base, left, self.cache.log(spec, "sweep"))
        if directories:
            self.cache.work.sweep()

    def _layer(
        self, plan: BuildPlan, planned: PlannedLayer, below: list[Path], not_before: str, used: contextlib.ExitStack
    ) -> Path:
        """The file of a layer, made unless it exists and is no older; it is in use until `used` is closed."""
        target = self.cache.layers.path(planned.key, planned.definition.is_base)
        seconds = 0
        if not self._is_cached(planned, target, not_before, used):  # without its lock: another build may make it anew
            with self._lock(planned.key, "layer"):
                if target.is_file():
                    self.cache.layers.content(planned.key, planned.definition.is_base)  # is recorded, if it was not
                if not self._is_cached(planned, target, not_before, used) and not self._download(
                    plan, planned, below, target, not_before, used
                ):
                    started = time.monotonic()
                    self._make_layer(plan, planned, below, target, used)
                    seconds = max(1, round(time.monotonic() - started))
        made = LayerBuild(planned.inputs, target.stat().st_size, seconds, planned.recipe)
        self.cache.memory.keep_layer_build(plan.spec, planned.name, made)
        return target

    def _is_cached(self, planned: PlannedLayer, target: Path, not_before: str, used: contextlib.ExitStack) -> bool:
        """Whether a layer exists and is no older. Then nobody replaces it until `used` is closed."""
        with contextlib.ExitStack() as kept:
            is_kept = kept.enter_context(self.cache.locks.use(target))
            content = self.cache.layers.known_content(planned.key, planned.definition.is_base)
            if not is_kept or content is None or content.built < not_before:
                return False
            used.push(kept.pop_all())
        self.progress.done("layer", planned.name, "cached", target.stat().st_size)
        return True

    def _replacing(self, target: Path, name: str) -> contextlib.AbstractContextManager[bool]:
        note = f"layer {name} is finished, and waits for builds that use the one before"
        return self.cache.locks.replacing(target, lambda: self.progress.note(note), self.progress.tick)

    def _download(
        self,
        plan: BuildPlan,
        planned: PlannedLayer,
        below: list[Path],
        target: Path,
        not_before: str,
        used: contextlib.ExitStack,
    ) -> bool:
        """Take a layer from a registry. False if none offers it, or if that fails, which ends no build."""
        offer = planned.offer
        if self.shared is None or offer is None or offer.content.origin in self.shared.failed:
            return False
        log = self.cache.log(plan.spec, planned.name)
        step = self.progress.begin("layer", planned.name, log)
        try:
            with self.cache.work.create() as work:
                made = self.shared.fetch(self._container(work), planned, offer, below, log)
                used.enter_context(self.cache.locks.use(made))
                built = min(max(offer.content.built, not_before), manifest_writer.utc_now())  # clocks differ
                with self._replacing(target, planned.name):
                    self.cache.layers.add(made, target, built, offer.content.origin)
        except (BuildError, ConfigError, RegistryError) as error:
            step.end("failed")
            self.progress.note(f"layer {planned.name} is built: {error.message}")
            return False
        step.end("downloaded", target.stat().st_size)
        return True

    def _make_layer(
        self, plan: BuildPlan, planned: PlannedLayer, below: list[Path], target: Path, used: contextlib.ExitStack
    ) -> None:
        spec = plan.spec
        log = self.cache.log(spec, planned.name)
        last = self.cache.memory.layer_build(spec, planned.name)
        step = self.progress.begin("layer", planned.name, log, last.seconds if last else None)
        with self.cache.work.create() as work:
            container = self._container(work)
            try:
                made = self._make_content(container, planned, below, log)
            except SectionFailed as error:
                where = f"in %{error.section} " if error.section else ""
                what = f"definition {planned.name} of image {spec.title} failed {where}(exit code {error.code})"
                raise StepFailed(what, error.failure) from error
            # Before others are built on it; the topmost is tested in the image.
            passed = self._test_layer(container, plan, [*below, made], log) if planned is not plan.layers[-1] else {}
            if self._may_keep(plan, planned, len(below)):
                compiled.keep(self.cache, planned.recipe, work, work / workspace.MNT)
            used.enter_context(self.cache.locks.use(made))  # before others can see it, and evict it
            with self._replacing(target, planned.name):
                self.cache.layers.add(made, target, manifest_writer.utc_now(), private=bool(self.host.secrets))
            layers = plan.layers[: len(below) + 1]
            self._remember_passes(container, layers, passed)
            self._compare(container, layers)
        step.end("copied" if planned.inherited else "built", target.stat().st_size)

    def _compare(self, container: Container, layers: Sequence[PlannedLayer]) -> None:
        """Say why the topmost layer is not what images.lock has of it, if it is not."""
        planned = layers[-1]
        if planned.locked is None:
            return
        stack = reuse.cached_stack(self.cache, layers)
        if why := lock.deviation(container, stack, planned.locked, planned.key):
            self.progress.note(f"layer {planned.name} is not as {lock_file.FILE} has it: {why}")

    def _may_keep(self, plan: BuildPlan, planned: PlannedLayer, number: int) -> bool:
        """Whether later builds may have what a layer has compiled: its %test has passed, all below was built here, and
        no %post could read a password of the build host."""
        contents = (self.cache.layers.known_content(one.key, one.definition.is_base) for one in plan.layers[:number])
        is_own = all(content and not content.origin and not content.private for content in contents)
        return is_own and not self.host.secrets and planned is not plan.layers[-1]

    def _make_content(self, container: Container, planned: PlannedLayer, below: list[Path], log: Path) -> Path:
        if planned.inherited:
            arch, is_base = planned.inputs.arch, planned.definition.is_base
            return inherit.copy(container, planned.name, planned.inherited, log, arch=arch, is_base=is_base)
        if planned.snapshot:
            mirror = lock_file.at_snapshot(planned.arguments.get(MIRROR, ""), planned.snapshot)
            planned = replace(planned, arguments={**planned.arguments, MIRROR: mirror})
        prepared = workspace.prepare(container.work, self.host, planned.locked.constraints if planned.locked else "")
        if not planned.not_before:
            compiled.offer(self.cache, planned.recipe, prepared.mnt_dir)
        if planned.definition.is_base:
            return base.make(container, planned, prepared, log)
        return layer.make(container, planned, LowerLayers(below[0], tuple(below[1:])), prepared, log)

    def _test_layer(
        self, container: Container, plan: BuildPlan, files: list[Path], log: Path
    ) -> dict[ImageTest, TestResult]:
        """Run the %test of the topmost of the layers `files`. Raises StepFailed."""
        number = len(files) - 1
        below = LowerLayers(files[0], tuple(files[1:]))
        passed: dict[ImageTest, TestResult] = {}
        for check in tests.definition_checks(plan):
            if check.since == number:
                passed[check] = tests.run(container, below.base, check, log, below.overlays)
                if not passed[check].passed:
                    name = plan.layers[number].name
                    what = f"definition {name} of image {plan.spec.title} failed in %test"
                    raise StepFailed(what, failure.read(log))
        return passed

    def _remember_passes(
        self, container: Container, layers: Sequence[PlannedLayer], passed: Mapping[ImageTest, TestResult]
    ) -> None:
        """An image of these layers, or of more that the tests cannot see, need not run them again."""
        stack = reuse.cached_stack(self.cache, layers)
        for check, result in passed.items():
            mark = planned_tests.mark(self.cache, container, stack, check, flat=False)
            self.cache.memory.keep_fact(mark, asdict(planned_tests.identified(result, check, container.engine)))

    def _assemble(
        self, plan: BuildPlan, stack: Stack, image: CachedImage, kept: int, used: contextlib.ExitStack
    ) -> BuildRecord:
        """Put the image together and describe it; from here on it exists, but has passed no test."""
        spec, flat, path = plan.spec, image.flat, image.path
        log = self.cache.log(spec, "image-flat" if flat else "image")
        expected = estimate.step(estimate.IMAGE, plan, kept)
        step = self.progress.begin("image", spec.name, log, self.cache.memory.durations(spec).get(expected))
        earlier = CachedImage(self.cache, spec).reusable(plan.renewed)
        with self.cache.work.create() as work:
            container = self._container(work)
            upstream = {} if plan.parent else describe.inspect_labels(container, stack.files[0])
            license_of = licenses.by_layer(plan, upstream)
            content = self._examine(container, stack)
            labels = describe.labels(plan, flat, license_of, content.packages)
            inputs = stack.files[0], stack.files[1:], plan.arch, labels, log
            earlier_file = self.cache.locks.move_out(path, work / "earlier.sif")  # from here on there is no image
            if flat:
                made = flatten.flatten(container, *inputs, plan.layers[-1].compression)
            elif earlier_file and earlier:
                made = assemble(container, *inputs, replace(earlier, path=earlier_file))
            else:
                if note := estimate.copy_note(self.cache, stack.files[0], in_use=bool(earlier)):
                    self.progress.note(note)
                made = assemble(container, *inputs)
            sbom.attach(container, plan, made, content.packages, license_of, log)
            manifest = describe.manifest(container, plan, made, stack.contents, content)
            used.enter_context(self.cache.locks.use(made))
            self.cache.files.place(made, path)
        self.cache.files.write(path.with_suffix(".json"), manifest_writer.as_data(manifest))
        step.end("made", path.stat().st_size)
        return manifest

    def _examine(self, container: Container, stack: Stack) -> Content:
        below = LowerLayers(stack.files[0], tuple(stack.files[1:]))
        count = reuse.needed_layers(self.cache, container, stack, since=0)
        seen = reuse.programs(describe.EXAMINE), reuse.surroundings(container)
        known = reuse.fingerprint("examine", stack.digests(count), *seen)
        return Content(
            **self.cache.memory.fact_or(known, lambda: asdict(describe.examine(container, below.base, below.overlays)))
        )

    def _test(self, plan: BuildPlan, stack: Stack, path: Path, manifest: BuildRecord) -> BuildRecord:
        """Run the tests of the image whose results may have changed. Returns its manifest, with all results."""
        recorded = [manifest]

        def record(results: Sequence[RecordedTest]) -> None:
            recorded.append(replace(manifest, tests=tuple(results)))
            self.cache.files.write(path.with_suffix(".json"), manifest_writer.as_data(recorded[-1]))

        with self.cache.work.create() as work:
            tester = Tester(self.cache, self._container(work), self.progress, plan, stack, manifest.flat)
            tester.run(path, manifest.tests, record, self.tests is WhichTests.ALL, self.tests_at_once)
        return recorded[-1]

    def _evict(self) -> None:
        if self.cap is not None:
            left = eviction.evict(self.cache, self.cap)
            if left > self.cap:
                self.progress.note(
                    f"the cache has {format_size(left)}, not {format_size(self.cap)}: builds use all of it"
                )

    def _container(self, work: Path) -> Container:
        return Container(self.engine, work, self.progress.tick, secrets=self.host.secrets)

    def _lock(self, name: str, what: str) -> contextlib.AbstractContextManager[None]:
        def say(owner: str) -> None:
            self.progress.note(f"waiting for {owner}, which is building the same {what}")

        return self.cache.locks.hold(name, say, self.progress.tick)


@contextlib.contextmanager
def _timed(times: dict[str, float], kind: str) -> Iterator[None]:
    """Put the time that this takes into `times`, unless it fails."""
    started = time.monotonic()
    yield
    times[kind] = time.monotonic() - started

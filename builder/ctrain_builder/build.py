"""Builds an image: layers -> image -> tests -> manifest. Skips what exists, tells a Progress, prints nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Protocol

from ctrain_builder import atomic, record
from ctrain_builder.cache import Cache, Made, amount
from ctrain_builder.catalog import ImageSpec
from ctrain_builder.make import base, describe, flatten, image, inherit, layer, sbom, smoke, workspace
from ctrain_builder.make.container import Below, Container, SectionFailed
from ctrain_builder.make.describe import Content
from ctrain_builder.make.image import Earlier
from ctrain_builder.make.site import Site
from ctrain_builder.parent import Parent
from ctrain_builder.plan import BuildPlan, PlannedLayer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import BuildError, ConfigError, DiskFullError, ImageTestError, RegistryError
from ctrain_runtime.facts import count_gpus
from ctrain_runtime.manifest import Layer, Manifest, TestResult, read_manifest

# Sizes in bytes of layers that were never made: an NGC base, a Debian base, an upper layer.
_GUESSES = {"docker": 10_000_000_000, "debootstrap": 800_000_000, "localimage": 300_000_000}
_UNPACKED = 3  # a layer's files take about three times the space of the compressed layer


class StepFailed(BuildError):
    """A definition failed; its last words are in `log`."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message, f"Log: {log}")
        self.log = log


class TestsFailed(ImageTestError):
    """The image is there but must not be published; what its tests said is in `log`."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message, f"Log: {log}")
        self.log = log


class Progress(Protocol):
    """What is told while an image is built. `end` gives the outcome of the step that began last.

    `tick` is called several times a second; what it raises ends the build.
    """

    def begin(self, kind: str, name: str, log: Path) -> None: ...
    def tick(self) -> None: ...
    def end(self, outcome: str, size: Optional[int] = None) -> None: ...
    def cached(self, kind: str, name: str, size: int) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Built:
    """A finished image; `fresh` if it was made just now."""

    path: Path
    manifest: Manifest
    fresh: bool


@dataclass(frozen=True)
class Builder:
    """`flat`: make flat images. `cap`: the size in bytes that the cache is cut down to after a build. `trust`: raises
    CtrainError for a parent image that no image may be built on."""

    cache: Cache
    engine: Engine
    site: Site
    progress: Progress
    flat: bool = False
    cap: Optional[int] = None
    trust: Callable[[Parent], None] = lambda _: None

    def build(self, plan: BuildPlan) -> Built:
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
            what = f"disk full: {amount(self.cache.free)} left in {self.cache.root}"
            raise DiskFullError(what, "Free disk space, or pass --cache DIR") from error

    def _build(self, plan: BuildPlan) -> Built:
        flat = is_flat(plan.spec, self.flat)
        path = self.cache.image(plan.spec, flat)
        with self._lock(path.stem, "image"), contextlib.ExitStack() as used:
            manifest = self._kept(plan, path, flat, used)
            fresh = manifest is None
            if manifest is None:
                manifest = self._make_image(plan, path, flat, used)
            self._evict()
        return Built(path, manifest, fresh)

    def _kept(self, plan: BuildPlan, path: Path, flat: bool, used: contextlib.ExitStack) -> Optional[Manifest]:
        """The manifest of the image if it is the planned one; it and its layers are in use until `used` is closed."""
        with contextlib.ExitStack() as kept:
            there = kept.enter_context(self.cache.use(path))  # first: from here on it can't be evicted
            manifest = up_to_date(self.cache, plan, flat) if there else None
            if manifest:
                for part in plan.layers:
                    kept.enter_context(self.cache.use(self.cache.layer(part.key, part.definition.is_base)))
                used.push(kept.pop_all())
        return manifest

    def _make_image(self, plan: BuildPlan, path: Path, flat: bool, used: contextlib.ExitStack) -> Manifest:
        sbom.require()
        left = self.cache.sweep()
        needed = space(self.cache, plan, flat, _download(plan))
        self.cache.require_space(sum(needed), f"building {plan.spec.title}")
        if flat and not self.flat:
            self.progress.note(f"{plan.spec.title} has more than {flatten.MAX_LAYERS} layers: it is flattened")
        files: list[Path] = []
        for planned in plan.layers:
            files.append(self._layer(plan.spec, planned, files, used))
        before = finished(self.cache, plan.spec, flat)
        self._sweep_as_root(left, files[0], plan.spec)
        content = self._assemble(plan, files, path, flat, used)
        log = self.cache.log(plan.spec, "tests-flat" if flat else "tests")
        return self._test_and_describe(plan, files, path, content, before.layers if before else (), log)

    def _sweep_as_root(self, folders: list[Path], base: Path, spec: ImageSpec) -> None:
        """Remove the folders of killed builds, which hold files that no longer are this user's own."""
        for folder in folders:
            with contextlib.suppress(BuildError, FileNotFoundError):
                left = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
                self._container(folder).take_ownership(base, left, self.cache.log(spec, "sweep"))
        if folders:
            self.cache.sweep()

    def _layer(self, spec: ImageSpec, planned: PlannedLayer, below: list[Path], used: contextlib.ExitStack) -> Path:
        """The file of a layer, made unless it exists; it is in use until `used` is closed."""
        target = self.cache.layer(planned.key, planned.definition.is_base)
        seconds = 0
        with self._lock(planned.key, "layer"):
            if used.enter_context(self.cache.use(target)):
                self.progress.cached("layer", planned.name, target.stat().st_size)
            else:
                started = time.monotonic()
                self._make_layer(spec, planned, below, target, used)
                seconds = max(1, round(time.monotonic() - started))
        self.cache.remember(spec, planned.name, Made(planned.inputs, target.stat().st_size, seconds))
        return target

    def _make_layer(
        self, spec: ImageSpec, planned: PlannedLayer, below: list[Path], target: Path, used: contextlib.ExitStack
    ) -> None:
        log = self.cache.log(spec, planned.name)
        self.progress.begin("layer", planned.name, log)
        with self.cache.work_folder() as work:
            try:
                made = self._make(planned, below, work, log)
            except SectionFailed as error:
                where = f"in %{error.section} " if error.section else ""
                what = f"definition {planned.name} of image {spec.title} failed {where}(exit code {error.code})"
                raise StepFailed(what, log) from error
            used.enter_context(self.cache.use(made))  # before others can see it, and evict it
            atomic.move(made, target)
        self.progress.end("copied" if planned.part else "built", target.stat().st_size)

    def _make(self, planned: PlannedLayer, below: list[Path], work: Path, log: Path) -> Path:
        container = self._container(work)
        if planned.part:
            arch, is_base = planned.inputs.arch, planned.definition.is_base
            return inherit.copy(container, planned.part, log, arch=arch, is_base=is_base)
        room = workspace.prepare(work, self.site)
        if planned.definition.is_base:
            return base.make(container, planned, room, log)
        return layer.make(container, planned, Below(below[0], tuple(below[1:])), room, log)

    def _assemble(
        self, plan: BuildPlan, files: list[Path], path: Path, flat: bool, used: contextlib.ExitStack
    ) -> Content:
        log = self.cache.log(plan.spec, "image-flat" if flat else "image")
        self.progress.begin("image", plan.spec.name, log)
        parts = files[0], files[1:], plan.arch, describe.labels(plan, flat), log
        earlier = earlier_image(self.cache, plan)
        with self.cache.work_folder() as work:
            container = self._container(work)
            taken = self.cache.take(path, work / "earlier.sif")  # from here on there is no image
            if flat:
                made = flatten.flatten(container, *parts)
            elif taken and earlier:
                made = image.assemble(container, *parts, replace(earlier, path=taken))
            else:
                made = image.assemble(container, *parts)
            content = describe.examine(container, made)
            sbom.attach(container, plan, made, content.packages, log)
            used.enter_context(self.cache.use(made))
            atomic.move(made, path)
        self.progress.end("made", path.stat().st_size)
        return content

    def _test_and_describe(
        self, plan: BuildPlan, files: list[Path], path: Path, content: Content, known: Sequence[Layer], log: Path
    ) -> Manifest:
        results: list[TestResult] = []
        with self.cache.work_folder() as work, ThreadPoolExecutor(1) as aside:
            container = self._container(work)
            digests = aside.submit(describe.digests, plan, path, files, known)  # reading 10 GB takes seconds
            name = smoke.facts_name(plan.keys[0])
            facts = self.cache.facts(name, lambda: smoke.base_facts(container, files[0]))
            for check in smoke.checks(plan, facts, count_gpus()):
                self.progress.begin("test", check.name, log)
                results.append(smoke.run(container, path, check, log))
                self.progress.end(results[-1].outcome)
                if results[-1].outcome == "failed":
                    layer = smoke.blame(container, plan, files, check, log.with_suffix(".blame.log"))
                    since = f"fails since layer {layer}" if layer else "passes where its layers are mounted by option"
                    raise TestsFailed(f"test {check.name!r} of image {plan.spec.title} failed; it {since}", log)
            manifest = describe.manifest(container, plan, path, digests.result(), content, results)
        self.cache.write(path.with_suffix(".json"), record.as_data(manifest))
        return manifest

    def _evict(self) -> None:
        if self.cap is not None:
            left = self.cache.evict(self.cap)
            if left > self.cap:
                self.progress.note(f"the cache has {amount(left)}, not {amount(self.cap)}: builds use all of it")

    def _container(self, work: Path) -> Container:
        return Container(self.engine, work, self.progress.tick, secrets=self.site.secrets)

    def _lock(self, name: str, what: str) -> contextlib.AbstractContextManager[None]:
        def say(owner: str) -> None:
            self.progress.note(f"waiting for {owner}, which makes the same {what}")

        return self.cache.lock(name, say, self.progress.tick)


def is_flat(spec: ImageSpec, wanted: bool) -> bool:
    """Whether an image is flat: because that is wanted, or because it has more layers than engines mount quickly.

    Those of a parent image don't count: `ctrain publish` could not tell from the definitions how many they are.
    """
    return wanted or len([part for part in spec.chain if not part.is_base]) > flatten.MAX_LAYERS


def finished(cache: Cache, spec: ImageSpec, flat: bool = False) -> Optional[Manifest]:
    """The manifest of the image in the cache; None when there is none, or when it is of an older format."""
    path = cache.image(spec, flat)
    if not path.is_file() or not path.with_suffix(".json").is_file():
        return None
    try:
        return read_manifest(path.with_suffix(".json"))
    except ConfigError:
        return None  # it can be made again, which is what the caller does then


def earlier_image(cache: Cache, plan: BuildPlan) -> Optional[Earlier]:
    """The image in the cache, if it can be made the planned one by replacing some of its layers."""
    manifest, path = finished(cache, plan.spec), cache.image(plan.spec)
    if manifest is None or manifest.flat or manifest.size != path.stat().st_size:
        return None
    same = [part.key == key for part, key in zip(manifest.layers, plan.keys)]
    common = (*same, False).index(False)
    return Earlier(path, common - 1) if common else None


def up_to_date(cache: Cache, plan: BuildPlan, flat: bool) -> Optional[Manifest]:
    """The manifest of the image in the cache if it is the planned one and has passed its tests."""
    manifest = finished(cache, plan.spec, flat)
    return manifest if manifest and is_of(manifest, plan) and manifest.tested else None


def is_of(manifest: Manifest, plan: BuildPlan) -> bool:
    """Whether an image is made of the planned layers."""
    return not plan.problem and tuple(part.key for part in manifest.layers) == plan.keys


def space(cache: Cache, plan: BuildPlan, flat: bool, download: Optional[int] = None) -> tuple[int, int]:
    """Bytes that building the image needs at most: for what is kept, and for the largest of its steps besides.

    `download` is the size of what the base starts from, where it is known.
    """
    missing = there = largest = 0
    for part in plan.layers:
        try:
            there += cache.layer(part.key, part.definition.is_base).stat().st_size
        except FileNotFoundError:
            made = cache.made(plan.spec, part.name)
            known = part.part.size if part.part else made.size if made else download if part.base else None
            size = known or _GUESSES.get(part.definition.header["bootstrap"], _GUESSES["docker"])
            missing += size
            largest = max(largest, size)
    whole = missing + there
    return missing + whole, _UNPACKED * (whole if flat else largest)


def _download(plan: BuildPlan) -> Optional[int]:
    """The compressed size in bytes of the upstream image that is to be downloaded; None where that is not known."""
    base = plan.layers[0]
    if not base.base or base.exists:
        return None
    from ctrain_builder.registry import Registry  # which loads much that other builds don't need

    with contextlib.suppress(RegistryError):  # the download itself says what is wrong
        return Registry().size(base.base, plan.arch)
    return None

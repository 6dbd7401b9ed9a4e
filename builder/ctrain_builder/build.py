"""Builds an image: layers -> image -> tests -> manifest. Skips what exists, tells a Progress, prints nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Protocol

from ctrain_builder import atomic, record
from ctrain_builder.cache import Cache
from ctrain_builder.catalog import ImageSpec
from ctrain_builder.make import base, describe, image, layer, smoke, workspace
from ctrain_builder.make.container import Below, Container, SectionFailed
from ctrain_builder.make.site import Site
from ctrain_builder.plan import BuildPlan, PlannedLayer
from ctrain_runtime.errors import BuildError, ConfigError, ImageTestError
from ctrain_runtime.facts import Engine
from ctrain_runtime.store import Manifest, TestResult, read_manifest

# Rough peaks of disk use: the unpacked base, its SIF and the image. An NGC image unpacks to about 25 GB.
_SPACE_FOR_BASE = {"debootstrap": 4_000_000_000, "docker": 45_000_000_000}
_SPACE_FOR_LAYERS = 1_500_000_000


class StepFailed(BuildError):
    """A definition failed; its last words are in `log`."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message, f"The log is {log}")
        self.log = log


class TestsFailed(ImageTestError):
    """The image is there but must not be published; what its tests said is in `log`."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message, f"The log is {log}")
        self.log = log


class Progress(Protocol):
    """What is told while an image is built. `end` gives the outcome of the step that began last."""

    def begin(self, kind: str, name: str, log: Path) -> None: ...
    def tick(self) -> None: ...
    def end(self, outcome: str, size: Optional[int] = None) -> None: ...
    def cached(self, kind: str, name: str, size: int) -> None: ...
    def waiting(self) -> None: ...


@dataclass(frozen=True)
class Built:
    """A finished image; `fresh` if it was made just now."""

    path: Path
    manifest: Manifest
    fresh: bool


@dataclass(frozen=True)
class Builder:
    cache: Cache
    engine: Engine
    site: Site
    progress: Progress

    def build(self, plan: BuildPlan) -> Built:
        """Make what is missing of the planned image. Raises BuildError, SpaceError, ImageTestError."""
        os.umask(0o022)  # an image must not depend on the umask of who builds it
        path = self.cache.image(plan.spec)
        with self.cache.lock(plan.spec.file_stem, self.progress.waiting):
            manifest = finished(self.cache, plan.spec)
            if manifest and manifest.tested and tuple(part.key for part in manifest.layers) == plan.keys:
                return Built(path, manifest, fresh=False)
            self.cache.sweep()
            self._require_space(plan)
            files: list[Path] = []
            for planned in plan.layers:
                files.append(self._layer(plan.spec, planned, files))
            path.with_suffix(".json").unlink(missing_ok=True)  # from here on the image is not the one described there
            self._image(plan, files, path)
            manifest = self._test_and_describe(plan, files, path)
        return Built(path, manifest, fresh=True)

    def _require_space(self, plan: BuildPlan) -> None:
        first = plan.layers[0]
        needed = _SPACE_FOR_LAYERS
        if not first.exists:
            needed += _SPACE_FOR_BASE.get(first.definition.header["bootstrap"], _SPACE_FOR_BASE["docker"])
        self.cache.require_space(needed, f"building {plan.spec.name}")

    def _layer(self, spec: ImageSpec, planned: PlannedLayer, below: list[Path]) -> Path:
        """The file of a layer, made unless it exists."""
        target = self.cache.layer(planned.key, planned.definition.is_base)
        with self.cache.lock(planned.key, self.progress.waiting):
            if target.is_file():
                self.progress.cached("layer", planned.name, target.stat().st_size)
                return target
            log = self.cache.log(spec, planned.name)
            self.progress.begin("layer", planned.name, log)
            with self.cache.work_folder() as work:
                try:
                    made = self._make(planned, below, work, log)
                except SectionFailed as error:
                    where = f"in %{error.section} " if error.section else ""
                    what = f"definition {planned.name} of image {spec.name} failed {where}(exit code {error.code})"
                    raise StepFailed(what, log) from error
                atomic.move(made, target)
            self.progress.end("built", target.stat().st_size)
        return target

    def _make(self, planned: PlannedLayer, below: list[Path], work: Path, log: Path) -> Path:
        container = self._container(work)
        space = workspace.prepare(work, self.site)
        if planned.definition.is_base:
            return base.make(container, planned, space, log)
        return layer.make(container, planned, Below(below[0], tuple(below[1:])), space, log)

    def _image(self, plan: BuildPlan, files: list[Path], path: Path) -> None:
        log = self.cache.log(plan.spec, "image")
        self.progress.begin("image", plan.spec.name, log)
        with self.cache.work_folder() as work:
            atomic.move(image.assemble(self._container(work), files[0], files[1:], plan.arch, log), path)
        self.progress.end("made", path.stat().st_size)

    def _test_and_describe(self, plan: BuildPlan, files: list[Path], path: Path) -> Manifest:
        log = self.cache.log(plan.spec, "tests")
        results: list[TestResult] = []
        with self.cache.work_folder() as work:
            container = self._container(work)
            for check in smoke.checks(plan, describe.software(container, files[0])):
                self.progress.begin("test", check.name, log)
                results.append(smoke.run(container, path, check, log))
                self.progress.end("passed" if results[-1].passed else "FAILED")
                if not results[-1].passed:
                    raise TestsFailed(f"test {check.name!r} of image {plan.spec.name} failed", log)
            manifest = describe.manifest(container, plan, path, files, results)
        record.write(path.with_suffix(".json"), manifest)
        return manifest

    def _container(self, work: Path) -> Container:
        return Container(self.engine, work, self.progress.tick)


def finished(cache: Cache, spec: ImageSpec) -> Optional[Manifest]:
    """The manifest of the image in the cache; None when there is none, or when it is of an older format."""
    path = cache.image(spec)
    if not path.is_file() or not path.with_suffix(".json").is_file():
        return None
    try:
        return read_manifest(path.with_suffix(".json"))
    except ConfigError:
        return None  # it can be made again, which is what the caller does then

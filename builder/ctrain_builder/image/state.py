"""How it stands with an image of a builder's cache, measured by its plan: the one answer that all verbs go by."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.image import flatten
from ctrain_builder.image.assemble import ReusableImage
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing import planned_tests, record
from ctrain_builder.testing.record import BuildRecord, RecordedTest
from ctrain_runtime.base.text import pluralize
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.manifest import BASE_BUILT_LABEL, Manifest


class Stage(enum.Enum):
    PLANNED = "planned"  # the cache has none, or one of other layers
    CORRUPT = "corrupt"  # what the cache has cannot be what was built
    BUILT = "built"  # as planned; today's tests have changed or were not run
    FAILED = "failed"  # as planned; one of today's tests has failed
    TESTED = "tested"  # as planned; all of today's tests have passed


@dataclass(frozen=True)
class ImageState:
    """`manifest` is that of the image in the cache, of whatever layers it is; None without one that can be read.
    `kept`: how many layers, from the base upwards, it has in common with the plan. `why` it is not further. `results`:
    those of today's tests that hold, by name, with their fingerprints; `untestable`: there is no test. `published`:
    the version of a store that is the planned image; "" without one, or where none was looked for."""

    stage: Stage
    manifest: Optional[BuildRecord] = None
    kept: int = 0
    why: str = ""
    results: Mapping[str, RecordedTest] = field(default_factory=dict)
    untestable: bool = False
    published: str = ""

    @property
    def is_as_planned(self) -> bool:
        return self.stage in (Stage.BUILT, Stage.FAILED, Stage.TESTED)


@dataclass(frozen=True)
class CachedImage:
    """The place of an image in a cache."""

    cache: Cache
    spec: ImageSpec
    flat: bool = False

    @property
    def path(self) -> Path:
        return self.cache.image(self.spec, self.flat)

    def state(self, plan: BuildPlan, engine: Optional[Engine] = None, published: Iterable[Manifest] = ()) -> ImageState:
        """Measured by `plan`. `engine`: the one to test with; None, as for publishing, takes results of any machine:
        see planned_tests. `published`: the versions among which the image is looked for."""
        same = [one.reference for one in published if self._is_published(plan, one)]
        version = same[-1] if same else ""
        manifest, damage = self.recorded()
        if damage:
            return ImageState(Stage.CORRUPT, manifest, why=damage, published=version)
        if manifest is None:
            return ImageState(Stage.PLANNED, why="not in the cache", published=version)
        kept, why = self._kept(plan, manifest)
        if why:
            return ImageState(Stage.PLANNED, manifest, kept, why, published=version)
        known = planned_tests.remembered(self.cache, plan, manifest)
        checks = known or []
        results = planned_tests.holding(checks, manifest.tests, engine)
        failed = planned_tests.failed(known, manifest.tests)
        if failed:
            stage, why = Stage.FAILED, f"failed: {', '.join(failed)}"
        elif known is None:
            stage, why = Stage.BUILT, "not tested"
        elif not checks:
            stage, why = Stage.BUILT, "it has no tests"
        elif len(results) < len(checks) or not manifest.tested:
            due = len(checks) - len(results)
            stage, why = Stage.BUILT, f"{due} of {pluralize(len(checks), 'test')} changed or not run"
        else:
            stage, why = Stage.TESTED, ""
        return ImageState(stage, manifest, kept, why, results, known == [], version)

    def reusable(self, plan: BuildPlan) -> Optional[ReusableImage]:
        """The image, if it can be made the planned one by replacing some of its layers."""
        state = self.state(plan)
        return ReusableImage(self.path, state.kept - 1) if state.kept and not self.flat else None

    def recorded(self) -> tuple[Optional[BuildRecord], str]:
        """The manifest beside the image, and why the two cannot be what was built. Without one of them there is no
        image: builds write the manifest last, and remove it first."""
        path = self.path
        if not path.is_file() or not path.with_suffix(".json").is_file():
            return None, ""
        try:
            manifest, size = record.read(path.with_suffix(".json")), path.stat().st_size
        except FileNotFoundError:
            return None, ""  # a build replaces it just now
        except ConfigError:
            return None, "its manifest cannot be read"
        return manifest, "" if manifest.size == size else f"it has {size} bytes instead of {manifest.size}"

    def _kept(self, plan: BuildPlan, manifest: Manifest) -> tuple[int, str]:
        """How many of the lowest layers are the planned ones, and why not all of them are: other ones, built again
        since with another content, or to be built again."""
        contents = (self.cache.layers.known_content(layer.key, layer.definition.is_base) for layer in plan.layers)
        equal = [
            old.key == layer.key and (content is None or old.digest == content.digest)
            for old, layer, content in zip(manifest.layers, plan.layers, contents)
        ]
        kept = [*equal, False].index(False)
        renewed = plan.renewed_from
        if renewed is not None and renewed <= kept:
            return renewed, f"{plan.layers[renewed].name}: {plan.layers[renewed].renewal}"
        if kept == len(plan.layers) == len(manifest.layers):
            return kept, ""
        return kept, "made of other layers"

    def _is_published(self, plan: BuildPlan, one: Manifest) -> bool:
        """Whether a version is the planned image, and none of its layers is to be built again."""
        kind = (plan.spec.store_name, plan.spec.tag, plan.spec.stack, self.flat)
        if (one.name, one.tag, one.stack, one.flat) != kind or plan.problem:
            return False
        if tuple(planned.key for planned in one.layers) != plan.keys:
            return False
        base = plan.layers[0]
        built = one.labels.get(BASE_BUILT_LABEL, one.built)  # the image's own time in manifests of earlier versions
        content = self.cache.layers.known_content(base.key, base.definition.is_base)
        if content and content.digest == one.layers[0].digest:  # built again, with no newer packages
            built = max(built, content.built)
        return built >= max(layer.not_before for layer in plan.layers)


def is_flat(spec: ImageSpec, wanted: bool) -> bool:
    """Whether an image is flat: because that is wanted, or because it has more layers than engines mount quickly.

    Those of a parent image don't count: `ctrain publish` could not tell from the definitions how many they are.
    """
    return wanted or len([definition for definition in spec.chain if not definition.is_base]) > flatten.MAX_LAYERS

"""What a cache remembers of builds: what layers were made of, how long steps took, and answers of programs in images.

All of it only saves work: what is missing or damaged is found out anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

from ctrain_builder.cache.cache_files import CacheFiles, load_record, read
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.plan.layer_key import LayerInputs


@dataclass(frozen=True)
class LayerBuild:
    """How a layer of an image was made last. `size` is in bytes; `seconds` is 0 if this image never built it; `recipe`:
    see layer_key."""

    inputs: LayerInputs
    size: int
    seconds: int = 0
    recipe: str = ""


@dataclass(frozen=True)
class Memory:
    root: Path

    def layer_build(self, spec: ImageSpec, definition: str) -> Optional[LayerBuild]:
        """How the layer of a definition was made last for this image; None when that is not known."""
        return load_record(LayerBuild, self._layer_build(spec, definition))

    def keep_layer_build(self, spec: ImageSpec, definition: str, made: LayerBuild) -> None:
        before = self.layer_build(spec, definition)
        if before and not made.seconds:
            made = replace(made, seconds=before.seconds)
        if before != made:
            CacheFiles(self.root).write(self._layer_build(spec, definition), asdict(made))

    def durations(self, spec: ImageSpec) -> dict[str, float]:
        """What the steps of an image's builds took last, in seconds; a layer's are in its LayerBuild."""
        return read(self._durations(spec)) or {}

    def keep_durations(self, spec: ImageSpec, steps: Mapping[str, float]) -> None:
        known = {**self.durations(spec), **{step: round(seconds, 1) for step, seconds in steps.items()}}
        CacheFiles(self.root).write(self._durations(spec), known)

    def fact(self, fingerprint: str) -> Optional[dict[str, Any]]:
        """What is remembered under a fingerprint of all that it depends on."""
        return read(self._fact(fingerprint))

    def keep_fact(self, fingerprint: str, fact: Mapping[str, Any]) -> None:
        CacheFiles(self.root).write(self._fact(fingerprint), fact)

    def forget_fact(self, fingerprint: str) -> None:
        self._fact(fingerprint).unlink(missing_ok=True)

    def fact_or(self, fingerprint: str, find_out: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `find_out` returned when it was first called under this fingerprint."""
        known = self.fact(fingerprint)
        if known is None:
            known = find_out()
            self.keep_fact(fingerprint, known)
        return known

    def _layer_build(self, spec: ImageSpec, definition: str) -> Path:
        return self.root / "inputs" / f"{spec.file_stem}.{definition}.json"

    def _durations(self, spec: ImageSpec) -> Path:
        return self.root / "durations" / f"{spec.file_stem}.json"

    def _fact(self, fingerprint: str) -> Path:
        return self.root / "facts" / f"{fingerprint}.json"

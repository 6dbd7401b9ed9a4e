"""Images in a builder's cache, as builds leave them there, made without an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.definitions import image_spec
from ctrain_builder.files import manifest_writer
from ctrain_builder.files.digests import regions_digest
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing import planned_tests, reuse
from ctrain_builder.testing.planned_tests import Questions
from ctrain_builder.testing.record import RecordedTest
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.store.manifest import Layer, Manifest
from ctrain_runtime.store.sif import PARTITION
from samples.sample_images import sif


def plan(
    definitions: Path, name: str = "small", tag: str = "", digest: str = "", given: Mapping[str, str] = {}
) -> BuildPlan:
    """The plan of an image; `digest` is that of its upstream image, if it has one; `given` are its --build-arg."""
    spec = image_spec.find_spec(definitions, name, tag)
    return build_plan.plan_image(spec, given, {}, "amd64", lambda *_: True, lambda _: digest)


def put(cache: Cache, planned: BuildPlan, make_manifest: Callable[..., Manifest]) -> Path:
    """Put the planned image into the cache with its layers, not tested so far; its path."""
    path = cache.image(planned.spec)
    base, *uppers = (part.name.encode() for part in planned.layers)
    path.write_bytes(sif(data=base, more=[(PARTITION, name) for name in uppers]))
    layers = []
    for part in planned.layers:
        name = part.name.encode()
        content = LayerContent(f"sha256:{hashlib.sha256(name).hexdigest()}", len(name))
        file = cache.layers.path(part.key, part.definition.is_base)
        file.write_bytes(name)
        cache.files.write(file.with_suffix(".json"), asdict(content))
        layers.append(Layer(part.name, part.key, content.size, content.digest))
    manifest = make_manifest(regions_digest(path, layers))
    manifest = replace(manifest, layers=tuple(layers), tests=(), size=path.stat().st_size)
    manifest_writer.write(path.with_suffix(".json"), manifest)
    return path


def tested(cache: Cache, planned: BuildPlan, manifest: Manifest) -> Manifest:
    """`manifest` with results of all tests, passed with the engine on PATH; its base has neither torch nor CUDA."""
    questions = Questions(base=dict, script=lambda _: "")
    checks = planned_tests.planned(cache, planned, [layer.digest for layer in manifest.layers], questions)
    engine = reuse.engine_name(find_engine())
    results = (RecordedTest(check.name, True, "1.2", "", planned_tests.fingerprint(check), engine) for check in checks)
    return replace(manifest, tests=tuple(results))

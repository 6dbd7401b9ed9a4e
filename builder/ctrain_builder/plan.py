"""The build plan: which layers an image needs and which of them exist. Starts nothing, writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ctrain_builder import definition as definitions
from ctrain_builder import files
from ctrain_builder.catalog import ImageSpec
from ctrain_builder.definition import PARENT, Definition
from ctrain_builder.files import SourceFile
from ctrain_builder.keys import layer_key
from ctrain_runtime.errors import UsageError

MIRROR = "MIRROR"
# Arguments that say where the building machine gets things, not what the image is: no part of a layer's key.
SITE_ARGUMENTS = (MIRROR,)


@dataclass(frozen=True)
class PlannedLayer:
    """One definition's layer. `definition` is not rendered yet: `arguments` hold its values."""

    definition: Definition
    arguments: Mapping[str, str]
    files: tuple[SourceFile, ...]
    key: str
    exists: bool

    @property
    def name(self) -> str:
        return self.definition.name


@dataclass(frozen=True)
class BuildPlan:
    """The layers of an image from the base upwards."""

    spec: ImageSpec
    arch: str
    layers: tuple[PlannedLayer, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(layer.key for layer in self.layers)


def make(
    spec: ImageSpec, given: Mapping[str, str], site: Mapping[str, str], arch: str, exists: Callable[[str, bool], bool]
) -> BuildPlan:
    """Plan `spec` with the --build-arg values `given` and the machine's own values `site`.

    `exists` tells whether the layer with a key (of a base: True) is in the cache. Raises ConfigError, UsageError.
    """
    _check_given(spec, given)
    layers: list[PlannedLayer] = []
    parent, parent_name = "", ""
    for part in spec.chain:
        values = {**site, **given, spec.tag_argument: spec.tag, PARENT: parent_name}
        wanted = {name: value for name, value in values.items() if name in part.placeholders}
        neutral = {name: f"{{{{ {name} }}}}" for name in (PARENT, *SITE_ARGUMENTS)}
        rendered = definitions.render(part, {**wanted, **neutral})
        listing = files.listing(rendered, spec.source_root)
        parent = layer_key(parent, rendered, listing, arch)
        layers.append(PlannedLayer(part, wanted, listing, parent, exists(parent, part.is_base)))
        parent_name = part.name
    return BuildPlan(spec, arch, tuple(layers))


def _check_given(spec: ImageSpec, given: Mapping[str, str]) -> None:
    known = frozenset().union(*(part.placeholders for part in spec.chain)) - {PARENT, spec.tag_argument}
    for name in given:
        if name == spec.tag_argument:
            raise UsageError(f"{name} is the tag of image {spec.name}", f"Use --tag {given[name]}")
        if name not in known:
            raise UsageError(
                f"no definition of image {spec.name} uses argument {name}", f"Known: {', '.join(sorted(known))}"
            )

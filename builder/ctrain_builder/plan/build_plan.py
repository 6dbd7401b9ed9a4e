"""The build plan: which layers an image needs, which of them exist, and why the others don't.

Starts nothing, writes nothing: what it must know of the world is asked through functions that it is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Optional

from ctrain_builder.definitions import base_source, files, lock_file
from ctrain_builder.definitions import definition as definitions
from ctrain_builder.definitions.definition import PARENT, Definition
from ctrain_builder.definitions.files import SourceFile
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.definitions.lock_file import LockedLayer
from ctrain_builder.definitions.parent import Parent
from ctrain_builder.files.digests import Region
from ctrain_builder.plan import layer_key
from ctrain_builder.plan.layer_key import LayerInputs
from ctrain_builder.registry.stored_layer import StoredLayer
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import ConfigError, CtrainError, ImageNotFound, RegistryError, UsageError

MIRROR = "MIRROR"
GZIP = "gzip"  # every engine and every kernel reads it
COMPRESSIONS = (GZIP, "zstd", "lz4")
BELOW_MISSING = "parent is not in the cache"
PUBLIC_MIRROR = "http://mirror.of.the.building.machine"
# Arguments that say where the building machine gets things, not what the image is: no part of a layer's key.
HOST_ARGUMENTS = (MIRROR,)
_NEUTRAL = {name: f"{{{{ {name} }}}}" for name in (PARENT, *HOST_ARGUMENTS)}
FALLBACK_EPOCH = 315619200  # 1980-01-02: the time of what has none, within the range of every archive format

OK, STALE, NEW, UNKNOWN, DOWNLOAD = "ok", "stale", "new", "unknown", "download"


@dataclass(frozen=True)
class PlannedLayer:
    """One definition's layer. `arguments` hold the values of its `definition`.

    `base` is what a docker base starts from, by its digest: "host/name@sha256:...". `epoch` is the time that the
    layer's files get (SOURCE_DATE_EPOCH), in seconds since 1970; it is no part of the key. `inherited` is the file
    system of the parent image that the layer is a copy of; then there is nothing to build. `not_before`: one that was
    built earlier (UTC) is built again; "" if any will do. `renewal`: why the one in the cache is; "" if it will do.
    `offer`: the layer in a registry that will do if it was built on what is below here; `downloads`: that is certain.
    `recipe`: see layer_key. `locked`: what images.lock has of it; `snapshot`: the date of the mirror to build it from.
    `compression`: of its squashfs file, by the argument of its definition, or of the next below that has one.
    """

    definition: Definition
    arguments: Mapping[str, str]
    files: tuple[SourceFile, ...]
    inputs: LayerInputs
    key: str
    exists: bool
    base: str = ""
    epoch: int = FALLBACK_EPOCH
    inherited: Optional[Region] = None
    not_before: str = ""
    renewal: str = ""
    offer: Optional[StoredLayer] = None
    downloads: bool = False
    recipe: str = ""
    locked: Optional[LockedLayer] = None
    snapshot: str = ""
    compression: str = GZIP

    @property
    def name(self) -> str:
        return self.definition.name

    @functools.cached_property
    def rendered(self) -> Definition:
        """The definition as it is built."""
        return definitions.render(self.definition, self.arguments)

    @functools.cached_property
    def public(self) -> Definition:
        """The definition as images show it. A placeholder stands for the URL of a mirror, which is of no use to
        anybody, and may hold a password."""
        return definitions.render(self.definition, {**self.arguments, MIRROR: PUBLIC_MIRROR})

    @property
    def is_from_mirror(self) -> bool:
        """Whether it is a base from package mirrors: built again, it may have newer packages."""
        return self.definition.is_base and not self.inherited and not self.inputs.base


@dataclass(frozen=True)
class BuildPlan:
    """The layers of an image from the base upwards; those of its parent image are the lowest.

    `problem` tells why the base or the parent can't be known; the keys are then "", and nothing can be built.
    """

    spec: ImageSpec
    arch: str
    layers: tuple[PlannedLayer, ...]
    problem: Optional[CtrainError] = None
    parent: Optional[Parent] = None

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(layer.key for layer in self.layers)

    @property
    def renewed_from(self) -> Optional[int]:
        """The number of the lowest layer that is built again although it exists; None without one. Of a whole image, a
        layer that has left the cache is no reason to build those above it again."""
        renewed = (number for number, layer in enumerate(self.layers) if layer.renewal not in ("", BELOW_MISSING))
        return next(renewed, None)

    @property
    def renewed(self) -> BuildPlan:
        """The plan once these layers were built again."""
        return replace(self, layers=tuple(replace(layer, renewal="") for layer in self.layers))

    @property
    def inputs(self) -> dict[str, LayerInputs]:
        """By definition."""
        return {layer.name: layer.inputs for layer in self.layers}


@dataclass(frozen=True)
class BuildStatus:
    """How it stands with a layer: ok (it exists), stale, new, unknown or download; and what has changed since the last
    one."""

    state: str
    why: tuple[str, ...] = ()


def _no_parent(reference: str) -> Parent:
    raise ConfigError(f"parent image {reference} cannot be looked up here")


def plan_image(
    spec: ImageSpec,
    given: Mapping[str, str],
    host: Mapping[str, str],
    arch: str,
    exists: Callable[[str, bool], bool],
    resolve: Callable[[str], str],
    epoch: Callable[[Sequence[Path]], int] = lambda _: FALLBACK_EPOCH,
    find_parent: Callable[[str], Parent] = _no_parent,
) -> BuildPlan:
    """Plan `spec` with the --build-arg values `given` and the machine's own values `host`.

    `exists` tells whether the layer with a key (of a base: True) is in the cache; `resolve` gives the digest of an
    upstream image (see base_source), or raises RegistryError; `epoch` the time of the last change of some files;
    `find_parent` the parent image for a reference, or raises CtrainError. Raises ConfigError for the definitions.
    """
    spec = replace(spec, variant=spec.variant.on(arch))
    problem: Optional[CtrainError] = None
    below: Optional[Parent] = None
    if spec.parent:
        try:
            below = find_parent(spec.parent)
        except CtrainError as error:
            problem = error
    layers = _inherited(spec, below, arch, exists) if below else []
    parent, parent_name, recipe = (layers[-1].key, layers[-1].name, layers[-1].recipe) if layers else ("", "", "")
    compression = GZIP
    for definition in spec.chain:
        values = {**host, **_arguments(spec, given), PARENT: parent_name}
        wanted = {name: value for name, value in values.items() if name in definition.placeholders}
        used = definitions.values(definition, {**wanted, **_NEUTRAL})
        compression = _compression(definition, used.get(layer_key.COMPRESSION, compression))
        rendered = definitions.render(definition, {**wanted, **_NEUTRAL})
        base, digest = "", ""
        if definition.is_base:
            try:
                base, digest = base_source.identify(rendered, resolve)
            except (ConfigError, RegistryError, ImageNotFound) as error:
                problem = error
        listing = files.listing(rendered, definition.source_root)
        locks = spec.locks.get(arch)
        from_mirror = definition.is_base and MIRROR in definition.placeholders
        lock = locks.key(definition.name, from_mirror=from_mirror) if locks else ""
        inputs = _inputs(
            definition, parent, digest, arch, {**used, **({layer_key.LOCK: lock} if lock else {})}, listing
        )
        parent = "" if problem else layer_key.compute_key(inputs)
        recipe = layer_key.compute_recipe(inputs, recipe)
        is_cached = not problem and exists(parent, definition.is_base)
        time = epoch([definition.path, *(definition.source_root / copy.source for copy in rendered.files)])
        planned = PlannedLayer(definition, wanted, listing, inputs, parent, is_cached, base, time, recipe=recipe)
        snapshot = locks.snapshot if locks and from_mirror else ""
        locked = lock_file.locked_layer(locks, definition.name)
        layers.append(replace(planned, locked=locked, snapshot=snapshot, compression=compression))
        parent_name = definition.name
    return BuildPlan(spec, arch, tuple(layers), problem, below)


def _compression(definition: Definition, value: str) -> str:
    if value not in COMPRESSIONS:
        problem = f"argument {layer_key.COMPRESSION} must be {' or '.join(COMPRESSIONS)}, not {value!r}"
        raise ConfigError(f"{definition.path}: {problem}")
    return value


def _inputs(
    own: Definition, parent: str, base: str, arch: str, used: Mapping[str, str], listing: Sequence[SourceFile]
) -> LayerInputs:
    """What the key of a definition's layer is computed of; `used` are the values of its arguments."""
    return LayerInputs(
        parent=parent,
        base=base,
        arch=arch,
        arguments={name: used[name] for name in sorted(used.keys() - _NEUTRAL.keys())},
        definition=layer_key.significant_lines(own.text),
        files={str(file.relative): f"{file.mode:o} {file.digest}" for file in listing},
    )


def _inherited(spec: ImageSpec, parent: Parent, arch: str, exists: Callable[[str, bool], bool]) -> list[PlannedLayer]:
    """The layers that an image takes over from its parent."""
    layers: list[PlannedLayer] = []
    names = {definition.name for definition in spec.chain}
    for name, region in parent.layers:
        if name in names:
            what = f"image {spec.name}: {parent.title} has a layer {name}, which is also in the chain"
            raise ConfigError(what, "Rename your definition")
        source, below = (f"{{{{ {PARENT} }}}}", layers[-1]) if layers else (name, None)
        about = definitions.parse(name, region.path, f"Bootstrap: localimage\nFrom: {source}\n")
        inputs = LayerInputs(below.key if below else "", region.digest, arch, {}, (), {})
        key, values = layer_key.compute_key(inputs), {PARENT: below.name} if below else {}
        recipe = layer_key.compute_recipe(inputs, below.recipe if below else "")
        layers.append(
            PlannedLayer(about, values, (), inputs, key, exists(key, not below), inherited=region, recipe=recipe)
        )
    return layers


def sources(spec: ImageSpec, given: Mapping[str, str]) -> set[PurePosixPath]:
    """What the definitions of `spec` copy, but for packaged ones: files and directories below its source_root."""
    values = {**_arguments(spec, given), **_NEUTRAL}
    own = (one for one in spec.chain if one.source_root == spec.source_root)
    return {copy.source for one in own for copy in definitions.render(one, values).files}


def _arguments(spec: ImageSpec, given: Mapping[str, str]) -> dict[str, str]:
    return {**spec.arguments, **given, spec.tag_argument: spec.tag}


def renew(
    plan: BuildPlan, built: Callable[[PlannedLayer], str], wanted: Callable[[PlannedLayer], tuple[str, str]]
) -> BuildPlan:
    """`plan` with the layers marked that exist, but are built again: those built before the time that `wanted` gives,
    with the reason, and those on another build of the layer below. `built` tells when a layer was built (UTC).
    """
    layers: list[PlannedLayer] = []
    for layer in plan.layers:
        not_before, reason = wanted(layer)
        below = layers[-1] if layers else None
        layer = replace(layer, not_before=not_before)
        if layer.exists and built(layer) < not_before:
            layer = replace(layer, exists=False, renewal=reason)
        elif layer.exists and below and not below.exists and below.renewal in ("", BELOW_MISSING):
            layer = replace(layer, exists=False, renewal=BELOW_MISSING)
        elif layer.exists and below and (not below.exists or built(layer) < built(below)):
            layer = replace(layer, exists=False, renewal="parent was built again")
        layers.append(layer)
    return replace(plan, layers=tuple(layers))


def with_offers(
    plan: BuildPlan,
    digest: Callable[[PlannedLayer], str],
    find: Callable[[PlannedLayer, Optional[str]], Optional[StoredLayer]],
) -> BuildPlan:
    """`plan` with what registries have of the layers that don't exist.

    `digest` tells that of an existing layer, "" if it is not known. `find` looks for an offer that `fits` a layer on
    the one below, whose digest is None before it is built: it may turn out to be what an offer was built on.
    """
    layers: list[PlannedLayer] = []
    below: Optional[str] = ""
    for layer in plan.layers:
        offer = None if layer.exists or layer.inherited or plan.problem else find(layer, below)
        layer = replace(layer, offer=offer, downloads=offer is not None and below is not None)
        own = digest(layer) if layer.exists else layer.inherited.digest if layer.inherited else ""
        below = (offer.content.digest if offer and layer.downloads else own) or None
        layers.append(layer)
    return replace(plan, layers=tuple(layers))


def fits(layer: PlannedLayer, offer: StoredLayer, below: Optional[str]) -> bool:
    """Whether an offer is as new as asked for, and was built on what has the digest `below` (None: unknown)."""
    return offer.content.built >= layer.not_before and below in (None, offer.parent)


def status(plan: BuildPlan, before: Callable[[str], Optional[LayerInputs]]) -> tuple[BuildStatus, ...]:
    """How it stands with each layer; `before` gives the inputs that a definition's layer had last."""
    return tuple(_status(plan, layer, before(layer.name)) for layer in plan.layers)


def _status(plan: BuildPlan, layer: PlannedLayer, before: Optional[LayerInputs]) -> BuildStatus:
    if plan.problem:
        return BuildStatus(UNKNOWN, (str(plan.problem),) if layer is plan.layers[0] else ("parent",))
    why = layer_key.differences(before, layer.inputs) if before else ()
    if layer.exists:
        return BuildStatus(OK, why)
    if layer.offer and layer.downloads:
        return BuildStatus(DOWNLOAD, (f"{format_size(layer.offer.content.size)} from {layer.offer.content.origin}",))
    if layer.renewal:
        return BuildStatus(STALE, (layer.renewal,))
    if before is None:
        return BuildStatus(NEW)
    return BuildStatus(STALE, why or ("not in the cache",))


def check_build_args(specs: Iterable[ImageSpec], given: Iterable[str]) -> None:
    """Raise UsageError for a --build-arg that no image uses, or that is the tag of one."""
    specs = tuple(specs)
    known = {name for spec in specs for definition in spec.chain for name in definition.placeholders} - {PARENT}
    tags = {spec.tag_argument: spec for spec in specs}
    for name in given:
        if name in tags:
            raise UsageError(f"{name} is the tag of image {tags[name].name}", "Use IMAGE:TAG or --tag")
        if name not in known:
            names = ", ".join(sorted({spec.name for spec in specs}))
            others = ", ".join(sorted(known - tags.keys())) or "none"
            hint = f"{suggest(name, known)} Known: {others}".strip()
            raise UsageError(f"no definition of {names} uses argument {name}", hint)

"""Plans images as the command line says, on this machine: its mirror, its cache, its registries and its stores."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from ctrain_builder.build import WhichTests
from ctrain_builder.build_host import settings
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache import renewals
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cli.options import parse_build_args
from ctrain_builder.definitions import parent
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.definitions.parent import Parent
from ctrain_builder.plan import build_plan, history
from ctrain_builder.plan.build_plan import BuildPlan, PlannedLayer
from ctrain_runtime.engines.apptainer import Engine, find_engine
from ctrain_runtime.errors import EngineError, UsageError
from ctrain_runtime.images.image import OCI_ARCH
from ctrain_runtime.site.select import SelectedSite, select_site
from ctrain_runtime.store.store import Store, open_stores

if TYPE_CHECKING:
    from ctrain_builder.layers.shared_layers import SharedLayers
    from ctrain_builder.registry.resolver import DigestResolver


def detect_host(args: argparse.Namespace) -> BuildHost:
    """The settings of this machine, with the mirror that the command line gives."""
    host = settings.detect(os.environ)
    return replace(host, mirror=parse_build_args(args.build_arg).get(build_plan.MIRROR, host.mirror))


def engine_of_machine() -> Optional[Engine]:
    """The engine on PATH; None without one: images can be planned nevertheless."""
    with contextlib.suppress(EngineError):
        return find_engine()
    return None


def plan_images(
    args: argparse.Namespace,
    specs: Sequence[ImageSpec],
    cache: Cache,
    host: BuildHost,
    parents: Parents,
    machine: str = "",
    sources: Optional[Collection[str]] = None,
) -> tuple[list[BuildPlan], Callable[[ImageSpec], BuildPlan]]:
    """The plans of the images on a `machine` (as `uname -m` tells, "" for this one), and what makes such plans.

    `sources`: the registries whose layers may be in the images; None where the images themselves are what counts."""
    given = parse_build_args(args.build_arg)
    build_plan.check_build_args(specs, given)
    registries = _Registries(cache, args.offline)
    make = _planner(cache, host, given, registries, parents, machine or platform.machine())
    wanted = renewals.wanted(specs, cache, args.rebuild, args.base_max_age, sources)

    def built(layer: PlannedLayer) -> str:
        return cache.layers.built(layer.key, layer.definition.is_base)

    planned = [build_plan.renew(make(spec), built, wanted) for spec in specs]
    registries.warn(planned)
    return planned, make


def layer_sources(args: argparse.Namespace, selected: SelectedSite) -> tuple[str, ...]:
    """The registries whose layers may be in images: those that the command line names, or else the site.

    Raises UsageError for one that the site does not name although it requires signatures."""
    sources = tuple(args.cache_from) or selected.site.layer_caches
    if selected.site.require_signature and not set(sources) <= set(selected.site.layer_caches):
        what = f"site {selected.site.name} requires signatures, which layers of registries do not have"
        raise UsageError(f"--cache-from: {what}", "Its administrators can name registries: `layer_caches`")
    return sources


def shared_layers(args: argparse.Namespace, sources: tuple[str, ...]) -> Optional[SharedLayers]:
    """Where layers are taken from and brought to; None if no registry is asked. Raises UsageError."""
    targets = [] if args.cache_to is None else [args.cache_to]
    if targets and (args.offline or args.tests == WhichTests.LATER.value):
        raise UsageError("--cache-to uploads layers of tested images", "Remove --offline and --tests later")
    if targets and parse_build_args(args.build_arg).keys() - set(build_plan.HOST_ARGUMENTS):
        what = "--cache-to uploads no layer with a value of --build-arg, which may be secret"
        raise UsageError(what, "Put the value into images.yaml, or remove --cache-to")
    sources = () if args.offline else sources
    if not (sources or targets):
        return None
    from ctrain_builder.layers.shared_layers import SharedLayers
    from ctrain_builder.registry import layers  # a client of registries

    for place in (*sources, *targets):
        layers.check(place)
    return SharedLayers(sources, "".join(targets), args.cache_bases)


class Parents:
    """Finds the parent images of definitions, in the stores of the site that this machine belongs to."""

    def __init__(self, cache: Cache, machine: str = "") -> None:
        self._cache, self._machine = cache, machine or platform.machine()
        self._known: dict[str, Parent] = {}
        self._selected: Optional[SelectedSite] = None

    def find(self, reference: str) -> Parent:
        if reference not in self._known:
            self._known[reference] = parent.find(reference, self.stores, self._machine, self._cache.memory.fact_or)
        return self._known[reference]

    def require_trust(self, chosen: Parent) -> None:
        parent.require_trust(chosen, self.site().site)

    def stores(self) -> list[Store]:
        return open_stores(self.site().store_dirs())

    def site(self) -> SelectedSite:
        self._selected = self._selected or select_site("", {})
        return self._selected


class _Registries:
    """Resolves references of upstream images; imports what that needs only when a definition starts from one."""

    def __init__(self, cache: Cache, offline: bool) -> None:
        self._cache, self._offline = cache, offline
        self._upstream: Optional[DigestResolver] = None

    def resolve(self, reference: str) -> str:
        if self._upstream is None:
            from ctrain_builder.registry.resolver import DigestResolver

            self._upstream = DigestResolver(self._cache.root, self._offline)
        return self._upstream.resolve(reference)

    def warn(self, planned: Sequence[BuildPlan]) -> None:
        """Say which registries did not answer, so that their images are taken as they were last time."""
        known = {plan.problem.message for plan in planned if plan.problem}
        for trouble in self._upstream.troubles.values() if self._upstream else ():
            if trouble.message not in known:
                print(f"{trouble.message}; its images are planned as they were last time", file=sys.stderr)


def _planner(
    cache: Cache, host: BuildHost, given: Mapping[str, str], registries: _Registries, parents: Parents, machine: str
) -> Callable[[ImageSpec], BuildPlan]:
    arch = OCI_ARCH.get(machine, machine)
    own = {build_plan.MIRROR: host.mirror} if host.mirror else {}
    epoch = history.epochs(os.environ)
    return lambda spec: build_plan.plan_image(
        spec, given, own, arch, cache.layers.has, registries.resolve, epoch, parents.find
    )

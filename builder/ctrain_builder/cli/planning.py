"""Plans images as the command line says, on this machine: its mirror, its cache, its registries and its stores."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from ctrain_builder import build_plan, history, manifest_writer, parent
from ctrain_builder.build_cache import Cache
from ctrain_builder.build_plan import BuildPlan, PlannedLayer
from ctrain_builder.cli.options import parse_build_args
from ctrain_builder.image_spec import ImageSpec
from ctrain_builder.layers import build_host
from ctrain_builder.layers.build_host import BuildHost
from ctrain_builder.parent import Parent
from ctrain_runtime.engines.apptainer import Engine, find_engine
from ctrain_runtime.errors import EngineError, UsageError
from ctrain_runtime.image import OCI_ARCH
from ctrain_runtime.site import SelectedSite, select_site
from ctrain_runtime.store import Store, open_stores

if TYPE_CHECKING:
    from ctrain_builder.registry.resolver import DigestResolver


def detect_site(args: argparse.Namespace) -> BuildHost:
    """The settings of this machine, with the mirror that the command line gives."""
    site = build_host.detect(os.environ)
    return replace(site, mirror=parse_build_args(args.build_arg).get(build_plan.MIRROR, site.mirror))


def engine_of_machine() -> Optional[Engine]:
    """The engine on PATH; None without one: images can be planned nevertheless."""
    with contextlib.suppress(EngineError):
        return find_engine()
    return None


def plan_images(
    args: argparse.Namespace,
    specs: Sequence[ImageSpec],
    cache: Cache,
    site: BuildHost,
    parents: Parents,
    machine: str = "",
) -> tuple[list[BuildPlan], Callable[[ImageSpec], BuildPlan]]:
    """The plans of the images on a `machine` (as `uname -m` tells, "" for this one), and what makes such plans."""
    given = parse_build_args(args.build_arg)
    build_plan.check_build_args(specs, given)
    registries = _Registries(cache, args.offline)
    make = _planner(cache, site, given, registries, parents, machine or platform.machine())
    wanted = _renewals(args, specs)

    def built(part: PlannedLayer) -> str:
        return cache.built(part.key, part.definition.is_base)

    planned = [build_plan.renew(make(spec), built, wanted) for spec in specs]
    registries.warn(planned)
    return planned, make


def _renewals(args: argparse.Namespace, specs: Sequence[ImageSpec]) -> Callable[[PlannedLayer], tuple[str, str]]:
    """The time before which a layer must not have been built, by --rebuild and --base-max-age, and why."""
    layer, age, now = args.rebuild, args.base_max_age, time.time()
    names = {part.name for spec in specs for part in spec.chain}
    if layer and layer not in names:
        raise UsageError(f"--rebuild: no layer {layer!r} in these images", f"Known: {', '.join(sorted(names))}")

    def wanted(part: PlannedLayer) -> tuple[str, str]:
        if layer is not None and layer in ("", part.name):
            return manifest_writer.utc(now), "--rebuild"
        if age is not None and part.is_from_mirror:
            return manifest_writer.utc(now - age * 86400), f"older than {age:g} days"
        return "", ""

    return wanted


class Parents:
    """Finds the parent images of definitions, in the stores of the site that this machine belongs to."""

    def __init__(self, cache: Cache, machine: str = "") -> None:
        self._cache, self._machine = cache, machine or platform.machine()
        self._known: dict[str, Parent] = {}
        self._selected: Optional[SelectedSite] = None

    def find(self, reference: str) -> Parent:
        if reference not in self._known:
            self._known[reference] = parent.find(reference, self.stores, self._machine, self._cache.facts)
        return self._known[reference]

    def require_trust(self, found: Parent) -> None:
        parent.require_trust(found, self._site().site)

    def stores(self) -> list[Store]:
        return open_stores(self._site().store_dirs())

    def _site(self) -> SelectedSite:
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
        said = {plan.problem.message for plan in planned if plan.problem}
        for trouble in self._upstream.troubles.values() if self._upstream else ():
            if trouble.message not in said:
                print(f"{trouble.message}; its images are planned as they were last time", file=sys.stderr)


def _planner(
    cache: Cache, site: BuildHost, given: Mapping[str, str], registries: _Registries, parents: Parents, machine: str
) -> Callable[[ImageSpec], BuildPlan]:
    arch = OCI_ARCH.get(machine, machine)
    own = {build_plan.MIRROR: site.mirror} if site.mirror else {}
    epoch = history.epochs(os.environ)
    return lambda spec: build_plan.plan_image(
        spec, given, own, arch, cache.has_layer, registries.resolve, epoch, parents.find
    )

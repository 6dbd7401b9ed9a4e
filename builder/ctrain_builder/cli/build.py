"""Build images of definitions/images.yaml: their layers, the images, their tests and their manifests.

Cached layers are reused; up-to-date images are not rebuilt.

  ctrain build --plan                             show stale layers and why: every image at every tag
  ctrain build pytorch-cpu                        build one image
  ctrain build pytorch-ngc:22.03 pytorch-cpu      two images, the first at another upstream version
  ctrain build --changed-since origin/main        only images that differ from that commit
  ctrain build --all --unpublished                only images that the store lacks
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Optional

from ctrain_builder import cache as caches
from ctrain_builder import catalog, history, parent, record
from ctrain_builder import plan as plans
from ctrain_builder.build import Builder, Built, WhichTests, earlier_image, is_flat, is_of, up_to_date
from ctrain_builder.cache import Cache
from ctrain_builder.catalog import ImageSpec
from ctrain_builder.cli import batch
from ctrain_builder.cli import plan as views
from ctrain_builder.cli.options import days
from ctrain_builder.cli.progress import Lines
from ctrain_builder.keys import Inputs
from ctrain_builder.make import explain, side_by_side
from ctrain_builder.make import site as sites
from ctrain_builder.make.container import Container
from ctrain_builder.make.site import Site
from ctrain_builder.parent import Parent
from ctrain_builder.plan import BuildPlan, PlannedLayer
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import RegistryError, UsageError
from ctrain_runtime.image import OCI_ARCH
from ctrain_runtime.manifest import Manifest
from ctrain_runtime.site import SelectedSite, select_site
from ctrain_runtime.store import Store, open_stores

if TYPE_CHECKING:
    from ctrain_builder.upstream import Upstream


def add_definitions_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--definitions",
        type=Path,
        metavar="DIR",
        help="directory of images.yaml and definitions; it extends the packaged ones "
        "($CTRAIN_DEFINITIONS, ./definitions)",
    )


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Where images are described and kept; shared with `ctrain publish`."""
    add_definitions_argument(parser)
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where layers, images and logs are kept ($CTRAIN_CACHE, /var/tmp/ctrain-UID)",
    )
    parser.add_argument("--tag", default="", help="upstream version of the image (default: the one in images.yaml)")
    parser.add_argument("--flatten", action="store_true", help="one file system instead of a base and layers")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="*", metavar="IMAGE[:TAG]", help="images of images.yaml")
    parser.add_argument("--all", action="store_true", help="every image at every tag")
    parser.add_argument("--changed-since", metavar="REV", help="only images that differ from those of a git commit")
    parser.add_argument(
        "--unpublished", action="store_true", help="only images that no store has with the same layers ($CTRAIN_STORE)"
    )
    parser.add_argument("--plan", action="store_true", help="only show which layers are stale and why")
    parser.add_argument("--explain", action="store_true", help="only print the commands that would run")
    parser.add_argument(
        "--tests",
        choices=[which.value for which in WhichTests],
        default=WhichTests.NEEDED.value,
        help="run tests whose results may have changed (default), none until `ctrain test`, or all",
    )
    parser.add_argument(
        "--rebuild",
        nargs="?",
        const="",
        metavar="LAYER",
        help="build all layers again, or LAYER and those above it; write it after the images, or as --rebuild=LAYER",
    )
    parser.add_argument(
        "--base-max-age",
        type=days,
        metavar="DAYS",
        help="build bases from package mirrors again that are older, with all layers on them",
    )
    parser.add_argument("--keep-going", action="store_true", help="continue with the other images after a failure")
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help="images built at once (default: 1)")
    parser.add_argument(
        "--cache-size",
        type=caches.parse_size,
        metavar="SIZE",
        help="after a build, evict least recently used entries until the cache fits SIZE, e.g. 200GB "
        "($CTRAIN_CACHE_SIZE; default: no limit)",
    )
    add_plan_arguments(parser)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """What an image's plan depends on; shared with `ctrain test`."""
    parser.add_argument("--offline", action="store_true", help="contact no registry; use cached digests")
    parser.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="K=V",
        help="value for an argument of a definition (repeatable)",
    )
    add_cache_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, terminated)
    definitions = catalog.directory(args.definitions)
    specs = _wanted(args, definitions)
    cache = caches.open_cache(args.cache or caches.default_root())
    site = detect_site(args)
    parents = Parents(cache)
    planned, make = plan_images(args, specs, cache, site, parents)
    before: Optional[dict[str, dict[str, Inputs]]] = None
    if args.changed_since:
        with cache.work_folder() as work:
            stems = {spec.file_stem for spec in specs}
            old = history.plans_at(args.changed_since, definitions, stems, parse_build_args(args.build_arg), make, work)
        before = {stem: plan.inputs for stem, plan in old.items()}
        planned = [plan for plan in planned if before.get(plan.spec.file_stem) != plan.inputs]
    if args.unpublished:
        published = [found.manifest for store in parents.stores() for found in store.images()]
        planned = [plan for plan in planned if not _has(published, plan, is_flat(plan.spec, args.flatten))]
    if args.plan:
        return _show(args, cache, planned, before)
    if args.explain:
        return _explain(args, cache, site, planned)
    return _build(args, cache, site, planned, parents)


def detect_site(args: argparse.Namespace) -> Site:
    """The settings of this machine, with the mirror that the command line gives."""
    site = sites.detect(os.environ)
    return replace(site, mirror=parse_build_args(args.build_arg).get(plans.MIRROR, site.mirror))


def plan_images(
    args: argparse.Namespace, specs: Sequence[ImageSpec], cache: Cache, site: Site, parents: Parents
) -> tuple[list[BuildPlan], Callable[[ImageSpec], BuildPlan]]:
    """The plans of the images, and what makes such plans."""
    given = parse_build_args(args.build_arg)
    plans.check_given(specs, given)
    registries = _Registries(cache, args.offline)
    make = _planner(cache, site, given, registries, parents)
    wanted = _renewals(args, specs)

    def built(part: PlannedLayer) -> str:
        return cache.built(part.key, part.definition.is_base)

    planned = [plans.renew(make(spec), built, wanted) for spec in specs]
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
            return record.utc(now), "--rebuild"
        if age is not None and part.is_from_mirror:
            return record.utc(now - age * 86400), f"older than {age:g} days"
        return "", ""

    return wanted


def _show(
    args: argparse.Namespace,
    cache: Cache,
    planned: Sequence[BuildPlan],
    before: Optional[Mapping[str, Mapping[str, Inputs]]],
) -> int:
    outlooks = []
    for plan in planned:
        inputs = None if before is None else before.get(plan.spec.file_stem, {})
        outlooks.append(views.look(cache, plan, is_flat(plan.spec, args.flatten), inputs))
    if args.json:
        print(json.dumps(views.as_data(cache, outlooks), indent=2))
    else:
        print(views.as_text(cache, outlooks))
    return 0


def _explain(args: argparse.Namespace, cache: Cache, site: Site, planned: Sequence[BuildPlan]) -> int:
    container = Container(find_engine(), explain.WORK, lambda: None)
    told = []
    for plan in planned:
        flat = is_flat(plan.spec, args.flatten)
        files = [cache.layer(part.key, part.definition.is_base) for part in plan.layers]
        idle = plan.problem or up_to_date(cache, plan, flat)
        told.append(
            (plan, [] if idle else explain.steps(container, plan, files, site, flat, earlier_image(cache, plan)))
        )
    print(json.dumps(views.steps_as_data(told), indent=2) if args.json else views.steps_as_text(told))
    return 0


def _build(args: argparse.Namespace, cache: Cache, site: Site, planned: Sequence[BuildPlan], parents: Parents) -> int:
    cap = args.cache_size
    if cap is None and os.environ.get("CTRAIN_CACHE_SIZE"):
        cap = caches.parse_size(os.environ["CTRAIN_CACHE_SIZE"])
    # With --json the only thing on stdout is the object; the lines for people go elsewhere.
    out = sys.stderr if args.json else sys.stdout
    engine = find_engine()

    at_once = side_by_side.at_once(args.jobs)

    def build_one(lines: Lines, plan: BuildPlan) -> Built:
        trust, tests = parents.require_trust, WhichTests(args.tests)
        return Builder(cache, engine, site, lines, args.flatten, cap, trust, tests, at_once).build(plan)

    outcomes = batch.build(planned, build_one, out, args.jobs, args.keep_going)
    if args.json:
        print(json.dumps(batch.as_data(outcomes), indent=2))
    elif not outcomes:
        print("nothing to build")
    return batch.exit_code(outcomes)


def _wanted(args: argparse.Namespace, definitions: Path) -> Sequence[ImageSpec]:
    """The images that the command line names; all of them where that is safe or asked for."""
    if args.images and args.all:
        raise UsageError("--all takes no image names", "Remove --all or the names")
    if args.tag and len(args.images) != 1:
        raise UsageError("--tag needs exactly one image", "Use IMAGE:TAG for each")
    if args.images:
        specs = [find_image(definitions, text, args.tag) for text in args.images]
        return list({spec.file_stem: spec for spec in specs}.values())
    specs = list(catalog.every(definitions))
    if args.all or args.plan or args.explain or args.changed_since or args.unpublished:
        return specs
    names = ", ".join(sorted({spec.name for spec in specs}))
    raise UsageError("no image given", f"Name one or more of: {names}; or use --all")


def find_image(definitions: Path, text: str, tag: str) -> ImageSpec:
    """The image of the argument IMAGE[:TAG] and the option --tag."""
    name, colon, own = text.partition(":")
    if colon and (tag or not own):
        raise UsageError(f"{text!r} has an empty tag, or --tag is also given", "Use IMAGE:TAG or --tag")
    return catalog.find(definitions, name, own or tag)


def _has(published: Sequence[Manifest], plan: BuildPlan, flat: bool) -> bool:
    """Whether the planned image is among published ones."""
    name = plan.spec.store_name
    return any(found.name == name and found.flat == flat and is_of(found, plan) for found in published)


class Parents:
    """Finds the parent images of definitions, in the stores of the site that this machine belongs to."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known: dict[str, Parent] = {}
        self._selected: Optional[SelectedSite] = None

    def find(self, reference: str) -> Parent:
        if reference not in self._known:
            machine = platform.machine()
            self._known[reference] = parent.find(reference, self.stores, machine, self._cache.facts)
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
        self._upstream: Optional[Upstream] = None

    def resolve(self, reference: str) -> str:
        if self._upstream is None:
            try:
                from ctrain_builder.upstream import Upstream
            except ModuleNotFoundError as error:
                what = f"Python package {error.name}, needed for registry access, is not installed"
                raise RegistryError(what, f"Run: pip install {error.name}") from error
            self._upstream = Upstream(self._cache.root, self._offline)
        return self._upstream.resolve(reference)

    def warn(self, planned: Sequence[BuildPlan]) -> None:
        """Say which registries did not answer, so that their images are taken as they were last time."""
        said = {plan.problem.message for plan in planned if plan.problem}
        for trouble in self._upstream.troubles.values() if self._upstream else ():
            if trouble.message not in said:
                print(f"{trouble.message}; its images are planned as they were last time", file=sys.stderr)


def _planner(
    cache: Cache, site: Site, given: Mapping[str, str], registries: _Registries, parents: Parents
) -> Callable[[ImageSpec], BuildPlan]:
    arch = OCI_ARCH.get(platform.machine(), platform.machine())
    own = {plans.MIRROR: site.mirror} if site.mirror else {}
    epoch = history.epochs(os.environ)
    return lambda spec: plans.make(spec, given, own, arch, cache.has_layer, registries.resolve, epoch, parents.find)


def terminated(*_: object) -> NoReturn:
    # As an exception, so that children are ended and temporary files removed on the way out.
    raise SystemExit(128 + signal.SIGTERM)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


def parse_build_args(texts: Sequence[str]) -> dict[str, str]:
    """The values of --build-arg by name. Raises UsageError."""
    for text in texts:
        if text.find("=") < 1:
            raise UsageError(f"--build-arg must be NAME=VALUE, not {text!r}")
    return dict(text.split("=", 1) for text in texts)

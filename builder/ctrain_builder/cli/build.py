"""Build images of definitions/images.yaml: their layers, the images, their tests and their manifests.

Cached layers are reused; up-to-date images are not rebuilt.

  ctrain build --plan                             # show stale layers and why: every image at every tag
  ctrain build pytorch-cpu                        # build one image
  ctrain build pytorch-ngc:22.03 pytorch-cpu      # two images, the first at another upstream version
  ctrain build --changed-since origin/main        # only images that differ from that commit
  ctrain build --all --unpublished                # only images that the store lacks
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from ctrain_builder.build import Builder, BuildResult, WhichTests
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli import batch, plan_view
from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.options import (
    add_plan_arguments,
    days,
    find_image,
    parse_build_args,
    parse_secrets,
    parse_size,
    positive,
)
from ctrain_builder.cli.planning import (
    Parents,
    detect_host,
    engine_of_machine,
    layer_sources,
    plan_images,
    shared_layers,
)
from ctrain_builder.cli.progress import ProgressLines
from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.image.state import CachedImage, is_flat
from ctrain_builder.plan import history
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.plan.layer_key import LayerInputs
from ctrain_builder.testing import side_by_side
from ctrain_runtime.engines.apptainer import find_building_engine
from ctrain_runtime.errors import UsageError
from ctrain_runtime.images.image import OCI_ARCH

if TYPE_CHECKING:
    from ctrain_builder.layers.shared_layers import SharedLayers

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?|(API|ACCESS|PRIVATE)_?KEY)($|_)", re.IGNORECASE
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="*", metavar="IMAGE[:TAG]", help="images of images.yaml")
    parser.add_argument("--all", action="store_true", help="every image at every tag")
    parser.add_argument("--changed-since", metavar="REV", help="only images that differ from those of a git commit")
    parser.add_argument(
        "--unpublished", action="store_true", help="only images that no store has with the same layers ($CTRAIN_STORE)"
    )
    parser.add_argument("--plan", action="store_true", help="only show which layers are stale and why")
    parser.add_argument(
        "--arch",
        choices=sorted(OCI_ARCH.values()),
        metavar="ARCH",
        help="with --plan: as on machines with other CPUs, such as arm64 of GH200 nodes; images are built on one",
    )
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
        help="build bases from package mirrors again that are older, with all layers on them; with --unpublished also "
        "those of published images",
    )
    parser.add_argument("--keep-going", action="store_true", help="continue with the other images after a failure")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="images built at once (default: 1)")
    parser.add_argument(
        "--cache-size",
        type=parse_size,
        metavar="SIZE",
        help="after a build, evict least recently used entries until the cache fits SIZE, e.g. 200GB "
        "($CTRAIN_CACHE_SIZE; default: no limit)",
    )
    parser.add_argument(
        "--cache-from",
        action="append",
        default=[],
        metavar="oras://HOST/PATH",
        help="download layers from this repository instead of building them: who can write there decides what is in "
        "them (repeatable; default: `layer_caches` of the site)",
    )
    parser.add_argument(
        "--cache-to",
        metavar="oras://HOST/PATH",
        help="upload the layers of images that have passed their tests to this repository",
    )
    parser.add_argument(
        "--cache-bases",
        action="store_true",
        help="with --cache-to: also bases that start from images of others, where their licences allow that",
    )
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="let each %%post read FILE as /mnt/secrets/NAME; it gets into no image, key or log (repeatable)",
    )
    add_plan_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    definitions = image_spec.directory(args.definitions)
    specs = _wanted(args, definitions)
    cache = open_cache(args.cache)
    host = replace(detect_host(args), build_secrets=parse_secrets(args.secret))
    for name in filter(_SECRET_NAME.search, parse_build_args(args.build_arg)):
        what = f"the value of --build-arg {name} gets into the image, its labels, logs and plans"
        print_note(f"ctrain: {what}. If it is secret: --secret {name}=FILE")
    machine = _machine(args)
    parents = Parents(cache, machine)
    sources = layer_sources(args, parents.site())
    shared = shared_layers(args, sources)
    planned, make = plan_images(args, specs, cache, host, parents, machine, sources)
    before: Optional[dict[str, dict[str, LayerInputs]]] = None
    if args.changed_since:
        with cache.work.create() as work:
            stems = {spec.file_stem for spec in specs}
            old = history.plans_at(args.changed_since, definitions, stems, parse_build_args(args.build_arg), make, work)
        before = {stem: plan.inputs for stem, plan in old.items()}
        planned = [plan for plan in planned if _differs(plan, old.get(plan.spec.file_stem))]
    if args.unpublished:
        published = [version.manifest for store in parents.stores() for version in store.images()]
        places = (CachedImage(cache, plan.spec, is_flat(plan.spec, args.flatten)) for plan in planned)
        states = [image.state(plan, published=published) for image, plan in zip(places, planned)]
        planned = [plan for plan, state in zip(planned, states) if not state.published]
    if shared:
        planned = [shared.with_offers(plan, cache, print_note) for plan in planned]
    if args.plan:
        return _show(args, cache, planned, before)
    return _build(args, cache, host, planned, parents, shared)


def _machine(args: argparse.Namespace) -> str:
    """The kind of machine that --arch names, as `uname -m` tells it; "" without the option."""
    machine = next((name for name, arch in OCI_ARCH.items() if arch == args.arch), "")
    if machine and machine != platform.machine() and not args.plan:
        raise UsageError(
            f"images for {args.arch} are built on machines of that kind", "Add --plan to see what is built"
        )
    return machine


def _show(
    args: argparse.Namespace,
    cache: Cache,
    planned: Sequence[BuildPlan],
    before: Optional[Mapping[str, Mapping[str, LayerInputs]]],
) -> int:
    engine = engine_of_machine()
    outlooks = []
    for plan in planned:
        inputs = None if before is None else before.get(plan.spec.file_stem, {})
        flat = is_flat(plan.spec, args.flatten)
        outlooks.append(plan_view.image_status(cache, plan, flat, inputs, engine))
    if args.json:
        print(json.dumps(plan_view.as_data(cache, outlooks), indent=2))
    else:
        print(plan_view.as_text(cache, outlooks))
    return 0


def _build(
    args: argparse.Namespace,
    cache: Cache,
    host: BuildHost,
    planned: Sequence[BuildPlan],
    parents: Parents,
    shared: Optional[SharedLayers],
) -> int:
    cap = args.cache_size
    if cap is None and os.environ.get("CTRAIN_CACHE_SIZE"):
        cap = parse_size(os.environ["CTRAIN_CACHE_SIZE"])
    engine = find_building_engine()
    at_once = side_by_side.at_once(args.jobs)

    def build_one(lines: ProgressLines, plan: BuildPlan) -> BuildResult:
        trust, tests = parents.require_trust, WhichTests(args.tests)
        return Builder(cache, engine, host, lines, args.flatten, cap, trust, tests, at_once, shared).build(plan)

    return batch.run(planned, build_one, args.json, args.jobs, args.keep_going, host.secrets)


def _wanted(args: argparse.Namespace, definitions: Path) -> Sequence[ImageSpec]:
    """The images that the command line names; all of them where that is safe or asked for."""
    if args.images and args.all:
        raise UsageError("--all takes no image names", "Remove --all or the names")
    if args.tag and len(args.images) != 1:
        raise UsageError("--tag needs exactly one image", "Use IMAGE:TAG for each")
    if args.images:
        specs = [find_image(definitions, text, args.tag) for text in args.images]
        return list({spec.file_stem: spec for spec in specs}.values())
    specs = list(image_spec.all_specs(definitions))
    if args.all or args.plan or args.changed_since or args.unpublished:
        return specs
    names = ", ".join(sorted({spec.name for spec in specs}))
    raise UsageError("no image given", f"Name one or more of: {names}; or use --all")


def _differs(plan: BuildPlan, old: Optional[BuildPlan]) -> bool:
    """Whether an image, or what its tests expect of it, is another than it was."""
    if old is None or plan.inputs != old.inputs:
        return True
    return (plan.spec.variant, plan.spec.horovod) != (old.spec.variant, old.spec.horovod)

"""Test images in the cache: those built with `ctrain build --tests later`, or again.

A test whose result cannot have changed is not run again, unless --rerun is given.

  ctrain build pytorch-cpu --tests later     # build it now
  ctrain test pytorch-cpu                    # test it later; `ctrain publish` refuses it until then
"""

from __future__ import annotations

import argparse

from ctrain_builder.build import Builder, BuildResult, WhichTests
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli import batch
from ctrain_builder.cli.options import add_plan_arguments, find_image
from ctrain_builder.cli.planning import Parents, detect_host, plan_images
from ctrain_builder.cli.progress import ProgressLines
from ctrain_builder.definitions import image_spec
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing import side_by_side
from ctrain_runtime.engines.apptainer import find_engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", metavar="IMAGE[:TAG]", help="image of images.yaml")
    parser.add_argument("--rerun", action="store_true", help="run all tests, even if nothing has changed")
    add_plan_arguments(parser)
    parser.set_defaults(rebuild=None, base_max_age=None)


def execute(args: argparse.Namespace) -> int:
    cache = open_cache(args.cache)
    host = detect_host(args)
    spec = find_image(image_spec.directory(args.definitions), args.image, args.tag)
    parents = Parents(cache)
    planned, _ = plan_images(args, [spec], cache, host, parents)
    engine = find_engine()
    tests = WhichTests.ALL if args.rerun else WhichTests.NEEDED

    def test_one(lines: ProgressLines, plan: BuildPlan) -> BuildResult:
        at_once = side_by_side.at_once()
        trust = parents.require_trust
        return Builder(cache, engine, host, lines, args.flatten, None, trust, tests, at_once).test(plan)

    return batch.run(planned, test_one, args.json)

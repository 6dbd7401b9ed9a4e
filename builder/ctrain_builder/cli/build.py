"""Build an image of definitions/images.yaml: its layers, the image, its tests and its manifest.

Layers that exist are not made again; an image that is up to date is left alone.

  ctrain build pytorch-cpu                        build it
  ctrain build pytorch-cpu --plan                 show what would be built
  ctrain build pytorch-ngc --tag 25.01            another upstream version
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from ctrain_builder import cache as caches
from ctrain_builder import catalog
from ctrain_builder import plan as plans
from ctrain_builder.build import Builder, StepFailed, TestsFailed
from ctrain_builder.cli.progress import Lines
from ctrain_builder.make import site as sites
from ctrain_builder.make.container import last_lines
from ctrain_builder.plan import BuildPlan
from ctrain_runtime.cli.text import size, table
from ctrain_runtime.errors import UsageError
from ctrain_runtime.facts import find_engine
from ctrain_runtime.image import MACHINES
from ctrain_runtime.share import folder

_SHOWN_OF_LOG = 15


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name an image in a cache, shared with `ctrain publish`."""
    parser.add_argument("image", metavar="IMAGE", help="name of the image in images.yaml")
    parser.add_argument("--tag", default="", help="upstream version (default: the one in images.yaml)")
    parser.add_argument("--definitions", type=Path, metavar="DIR", help="folder with images.yaml and the definitions")
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="where layers, images and logs are kept ($CTRAIN_CACHE, /var/tmp/ctrain-UID)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_image_arguments(parser)
    parser.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="K=V",
        help="value for an argument of a definition (repeatable)",
    )
    parser.add_argument("--plan", action="store_true", help="only show which layers exist and which would be built")


def execute(args: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, _terminated)
    cache = caches.open_cache(args.cache or caches.default_root())
    site = sites.detect(os.environ)
    spec = catalog.find(args.definitions or folder("definitions"), args.image, args.tag)
    arch = MACHINES.get(platform.machine(), platform.machine())
    own = {plans.MIRROR: site.mirror} if site.mirror else {}
    plan = plans.make(spec, _pairs(args.build_arg), own, arch, cache.has_layer)
    if args.plan:
        print(json.dumps(_as_data(plan), indent=2) if args.json else _as_table(plan))
        return 0
    # With --json the only thing on stdout is the object; the lines for people go elsewhere.
    progress = Lines(sys.stderr if args.json else sys.stdout)
    try:
        built = Builder(cache, find_engine(), site, progress).build(plan)
    except (StepFailed, TestsFailed) as error:
        progress.clear()
        print("".join(f"  | {line}\n" for line in last_lines(error.log, _SHOWN_OF_LOG)), end="", file=sys.stderr)
        raise
    finally:
        progress.clear()
    if args.json:
        print(json.dumps({"path": str(built.path), "fresh": built.fresh, "manifest": asdict(built.manifest)}, indent=2))
    else:
        state = "is built and tested" if built.fresh else "is up to date, nothing to do"
        print(f"{args.image} {spec.tag}-{spec.stack} {state}: {built.path} ({size(built.manifest.size)})")
    return 0


def _terminated(*_: object) -> NoReturn:
    # As an exception, so that children are ended and temporary files removed on the way out.
    raise SystemExit(128 + signal.SIGTERM)


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise UsageError(f"--build-arg {text!r} has no value", "Write it as NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _as_data(plan: BuildPlan) -> dict[str, Any]:
    layers = [{"definition": part.name, "key": part.key, "exists": part.exists} for part in plan.layers]
    return {
        "image": plan.spec.name,
        "tag": plan.spec.tag,
        "stack": plan.spec.stack,
        "arch": plan.arch,
        "layers": layers,
    }


def _as_table(plan: BuildPlan) -> str:
    rows = [(part.name, "exists" if part.exists else "to build", part.key[:12]) for part in plan.layers]
    missing = sum(not part.exists for part in plan.layers)
    head = f"{plan.spec.name} {plan.spec.tag}-{plan.spec.stack} ({plan.arch})"
    return f"{head}\n{table(('layer', 'state', 'key'), rows)}\n{missing} of {len(rows)} layers to build"

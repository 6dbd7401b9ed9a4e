"""Publish an image that was built and tested to a store, as its next version.

A store is a directory that all nodes see; `ctrain store init DIR` creates one.

  ctrain publish pytorch-cpu --store /apps/ctrain --channel dev
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import Optional

from ctrain_builder import build, image_spec
from ctrain_builder.cache_root import open_cache
from ctrain_builder.cli.bar import Bar, print_note
from ctrain_builder.cli.options import add_dry_run, add_plan_arguments, digest, find_image
from ctrain_builder.cli.planning import Parents, detect_site, plan_images
from ctrain_builder.cli.signer import make_signer
from ctrain_builder.cli.store.common import store_root
from ctrain_builder.store import channels
from ctrain_builder.store.publish import CopyObserver, PublishResult, find_same, publish, require_digest
from ctrain_builder.store.refresh import refresh
from ctrain_runtime.errors import ImageTestError
from ctrain_runtime.store import open_store
from ctrain_runtime.text import format_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", metavar="IMAGE[:TAG]", help="an image of images.yaml")
    add_plan_arguments(parser)
    parser.set_defaults(rebuild=None, base_max_age=None)
    parser.add_argument("--store", metavar="DIR", help="the store's directory (default: $CTRAIN_STORE)")
    parser.add_argument("--channel", metavar="CHANNEL", help="also make this channel (prod, dev, ...) point to it")
    parser.add_argument(
        "--sign", metavar="KEY", help="sign it: a PEM file, pgp:N of the engine's key ring, or gpg:KEY of gpg's agent"
    )
    add_dry_run(parser)
    parser.add_argument(
        "--digest",
        type=digest,
        metavar="DIGEST",
        help="refuse any image but the one with this digest (see `ctrain images show`, `ctrain build --json`)",
    )


def execute(args: argparse.Namespace) -> int:
    root = store_root(args.store)
    if args.channel is not None:
        channels.check(args.channel)
    cache = open_cache(args.cache)
    spec = find_image(image_spec.directory(args.definitions), args.image, args.tag)
    [plan], _ = plan_images(args, [spec], cache, detect_site(args), Parents(cache))
    if plan.problem:
        raise plan.problem
    flat = build.is_flat(spec, args.flatten)
    path = cache.image(spec, flat)
    with cache.use(path) as there:  # it stays while it is copied
        manifest = build.up_to_date(cache, plan, flat, None) if there else None
        if manifest is None:
            is_built = there and build.assembled(cache, plan, flat)
            verb, state = ("test", "has not passed its tests") if is_built else ("build", "is not built and tested")
            option = " --flatten" if args.flatten else ""
            raise ImageTestError(f"image {spec.title} {state}", f"Run: ctrain {verb} {spec.name}:{spec.tag}{option}")
        if args.dry_run:
            require_digest(path, manifest, args.digest or "")
            same = find_same(open_store(root), replace(manifest, signed=bool(args.sign)))
            text = f"{same.manifest.reference} is the same image" if same else f"would publish {spec.title}"
            print(json.dumps({"new_version": not same, "done": False}, indent=2) if args.json else text)
            return 0
        signer = make_signer(args.sign) if args.sign else None
        with Bar(f"copying {spec.title}", manifest.size) as bar:
            watch = CopyObserver(print_note, bar.at)
            outcome = publish(path, manifest, root, args.channel or "", watch, signer, args.digest or "")
    refresh(open_store(root), print_note)
    print(json.dumps(_as_data(outcome), indent=2) if args.json else _as_text(outcome, args.channel))
    return 0


def _as_data(outcome: PublishResult) -> dict[str, object]:
    image = outcome.image
    facts = {"path": str(image.path), "new_version": outcome.new_version}
    return {**facts, "channels": image.channels, "manifest": asdict(image.manifest)}


def _as_text(outcome: PublishResult, channel: Optional[str]) -> str:
    manifest, path = outcome.image.manifest, outcome.image.path
    if outcome.new_version:
        lines = [f"published {manifest.name} {manifest.version} ({format_size(manifest.size)}): {path}"]
    else:
        lines = [f"{manifest.name} {manifest.version} is the same image; no new version: {path}"]
    if channel:
        lines.append(f"channel {channel} of {manifest.name} is now {manifest.version}")
    return "\n".join(lines)

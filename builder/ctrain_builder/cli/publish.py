"""Publish an image that was built and tested to a store, as its next version.

A store is a directory that all nodes see; `ctrain store init DIR` creates one. The image in the cache must be the one
that `ctrain build` would make now, by the definitions and with the same --build-arg. With --digest, it is the one that
has this digest, whatever it was made of.

  ctrain publish pytorch-cpu --store /apps/ctrain --channel dev

Images that ctrain did not build: ctrain store adopt FILE.sif
"""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Optional

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.bar import Bar, print_note
from ctrain_builder.cli.options import add_dry_run, add_plan_arguments, digest, find_image
from ctrain_builder.cli.planning import Parents, detect_host, plan_images
from ctrain_builder.cli.signer import make_signer
from ctrain_builder.cli.store.common import store_root
from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.image import publishable
from ctrain_builder.image.state import CachedImage, is_flat
from ctrain_builder.store import channels
from ctrain_builder.store.publish import CopyObserver, PublishResult, find_same, publish, require_digest
from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import ImageTestError, UsageError
from ctrain_runtime.images.image import is_path
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.store import open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", metavar="IMAGE[:TAG]", help="an image of images.yaml")
    add_plan_arguments(parser)
    parser.set_defaults(rebuild=None, base_max_age=None, offline=True)  # a tag that moves after a build is not asked
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
        help="publish the image with this digest and no other, also one that is not what `ctrain build` would make now "
        "(see `ctrain images show`, `ctrain build --json`)",
    )


def execute(args: argparse.Namespace) -> int:
    root = store_root(args.store)
    if args.channel is not None:
        channels.check(args.channel)
    if is_path(args.image):
        adopt = shlex.join(["ctrain", "store", "adopt", args.image, "--store", str(root)])
        problem = f"{args.image} is a file, not an image of images.yaml that `ctrain build` has built"
        raise UsageError(problem, f"To bring an image file into the store: {adopt}")
    cache = open_cache(args.cache)
    spec = find_image(image_spec.directory(args.definitions), args.image, args.tag)
    image = CachedImage(cache, spec, is_flat(spec, args.flatten))
    if args.dry_run:
        return _publish(args, image, root)
    with publishable.removing_damaged(image, f"Run: {_command('build', args, spec)}"):
        return _publish(args, image, root)


def _publish(args: argparse.Namespace, cached: CachedImage, root: Path) -> int:
    spec, path = cached.spec, cached.path
    with cached.cache.locks.use(path) as is_cached:  # it stays while it is copied
        manifest = _publishable(args, cached) if is_cached else None
        if manifest is None:
            raise ImageTestError(f"image {spec.title} is not built and tested", f"Run: {_command('build', args, spec)}")
        signer = make_signer(args.sign) if args.sign else None
        if args.dry_run:
            require_digest(path, manifest, args.digest or "")
            same = find_same(open_store(root), manifest, signer)
            text = f"{same.manifest.reference} is the same image" if same else f"would publish {spec.title}"
            print(json.dumps({"new_version": not same, "done": False}, indent=2) if args.json else text)
            return 0
        with Bar(f"copying {spec.title}", manifest.size) as bar:
            watch = CopyObserver(print_note, bar.at)
            outcome = publish(path, manifest, root, args.channel or "", watch, signer, args.digest or "")
    print(json.dumps(_as_data(outcome), indent=2) if args.json else _as_text(outcome, args.channel))
    return 0


def _publishable(args: argparse.Namespace, cached: CachedImage) -> Optional[Manifest]:
    """Raises as `publishable.manifest`."""
    [plan], _ = plan_images(args, [cached.spec], cached.cache, detect_host(args), Parents(cached.cache))
    return publishable.manifest(cached, plan, args.digest or "", lambda verb: _command(verb, args, cached.spec))


def _command(verb: str, args: argparse.Namespace, spec: ImageSpec) -> str:
    options = [*(["--flatten"] if args.flatten else []), *(f"--build-arg={text}" for text in args.build_arg)]
    return shlex.join(["ctrain", verb, f"{spec.name}:{spec.tag}", *options])


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

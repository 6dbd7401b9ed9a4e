"""List new and moved tags of upstream base images.

  ctrain upstream                 # all images in images.yaml that start from a registry
  ctrain upstream pytorch-ngc     # this image
  ctrain upstream --offline       # contact no registry; show definitions/ngc.yaml
  ctrain upstream --lock pytorch-cpu       # write what the built image has to images.lock: the next build has the same
  ctrain upstream --build-arg REGISTRY=mirror.example.org     # use a mirror of the registry

A moved tag makes images stale: `ctrain build --plan` shows which. `~` marks unverified values, `-` unknown ones.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.options import add_definitions_argument, cache_directory, parse_build_args
from ctrain_builder.definitions import image_spec, ngc
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.definitions.ngc import Table
from ctrain_builder.plan import build_plan
from ctrain_builder.plan.upstream_check import GONE, MOVED, NEW, TagStatus, UpstreamChecker, uses_registry
from ctrain_builder.registry.resolver import DigestResolver
from ctrain_runtime.base.digest import short
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.base.text import pluralize, table
from ctrain_runtime.errors import UsageError
from ctrain_runtime.images.image import OCI_ARCH
from ctrain_runtime.registry.client import RegistryClient

HEAD = ("image", "tag", "state", "CUDA", "framework", "Python", "driver >=", "GPUs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="images of images.yaml (default: all)")
    parser.add_argument("--offline", action="store_true", help="contact no registry")
    text = "write the packages of built images (IMAGE[:TAG]) to images.lock, which their next builds are held to"
    parser.add_argument("--lock", action="store_true", help=text)
    parser.set_defaults(rebuild=None, base_max_age=None)
    parser.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="K=V",
        help="as for `ctrain build`: REGISTRY=HOST (repeatable)",
    )
    add_definitions_argument(parser)
    parser.add_argument(
        "--cache",
        type=cache_directory,
        metavar="DIR",
        help="where builders remember digests ($CTRAIN_CACHE, /var/tmp/ctrain-UID)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    if args.lock:
        from ctrain_builder.cli import lock  # what builds need

        return lock.execute(args)
    definitions = image_spec.directory(args.definitions)
    wanted = _wanted(args.images, _specs(definitions, args.images))
    given = parse_build_args(args.build_arg)
    if given and not wanted:
        raise UsageError("no image starts from a registry, so that no --build-arg counts", "Remove --build-arg")
    build_plan.check_build_args((spec for specs in wanted.values() for spec in specs), given)
    known = ngc.read(definitions if (definitions / ngc.FILE).is_file() else image_spec.packaged())
    registry = None if args.offline else RegistryClient()
    upstream = DigestResolver(open_cache(args.cache).root, args.offline, registry)
    survey = UpstreamChecker(known, upstream, registry, OCI_ARCH.get(platform.machine(), platform.machine()), given)
    statuses = {name: survey.tags(specs) for name, specs in wanted.items()}
    troubles = list(dict.fromkeys(str(trouble) for trouble in survey.troubles))
    print(
        json.dumps(_as_data(statuses, known, survey.blind, troubles), indent=2)
        if args.json
        else _as_text(statuses, known, survey.blind)
    )
    for trouble in troubles:
        print(f"ctrain: {trouble}", file=sys.stderr)
    if troubles or args.offline:
        print(f"what no registry was asked about is from ngc.yaml, checked {known.checked}", file=sys.stderr)
    return survey.troubles[0].exit_code if survey.troubles else 0


def _specs(definitions: Path, names: Sequence[str]) -> list[ImageSpec]:
    """The images of `definitions`, and the packaged ones among `names` that are not in it."""
    own = image_spec.all_specs(definitions)
    missing = set(names) - {spec.name for spec in own}
    return [*own, *(spec for spec in image_spec.all_specs(image_spec.packaged()) if spec.name in missing)]


def _wanted(names: Sequence[str], specs: Sequence[ImageSpec]) -> dict[str, list[ImageSpec]]:
    """The images to look at, each at all tags of its matrix."""
    every = {spec.name: [other for other in specs if other.name == spec.name] for spec in specs}
    bases = {name: image for name, image in every.items() if uses_registry(image[0])}
    for name in names:
        if name not in every:
            hint = f"{suggest(name, every)} It has: {', '.join(every)}".strip()
            raise UsageError(f"images.yaml has no image {name!r}", hint)
        if name not in bases:
            hint = f"Those that do: {', '.join(bases) or 'none'}"
            raise UsageError(f"image {name} does not start from an image in a registry", hint)
    return {name: bases[name] for name in names or bases}


def _as_text(statuses: Mapping[str, Sequence[TagStatus]], known: Table, blind: Container[str]) -> str:
    rows = [
        (name if tag is tags[0] else "", *_row(tag, _newest(tags), known))
        for name, tags in statuses.items()
        for tag in tags
    ]
    lines = [table(HEAD, rows)] if rows else ["no image of images.yaml starts from one in a registry"]
    for name, tags in statuses.items():
        for tag in tags:
            if tag.state == GONE:
                lines.append(f"{name} {tag.tag} is gone: the registry no longer has {tag.reference}")
            if tag.before and tag.state == MOVED:
                was = f"{short(tag.before.digest)} on {tag.before.seen[:10]}"
                lines.append(
                    f"{name} {tag.tag} has moved: {was}, now {short(tag.digest)}. Run: ctrain build {name}:{tag.tag}"
                )
        lines.append(f"{name}: {_summary(name, tags, name in blind)}")
    return "\n".join(lines)


def _summary(name: str, tags: Sequence[TagStatus], blind: bool) -> str:
    new = [tag.tag for tag in tags if tag.state == NEW]
    if new:
        return f"{pluralize(len(new), 'new tag')}. Try: ctrain build {name}:{new[-1]}"
    newest = _newest(tags).tag
    return f"versions newer than {newest} are unknown" if blind else f"nothing newer than {newest}"


def _row(tag: TagStatus, newest: TagStatus, known: Table) -> tuple[str, ...]:
    release = tag.release
    framework = release.shown(tag.framework).split("+")[0]  # without the commit
    gpus = ", ".join(known.gpus(release.arch)) or "-"
    if change := _compare(newest, tag, known):
        parts = [f"{word} {', '.join(names)}" for word, names in zip(("also", "no"), change) if names]
        gpus = "; ".join(reversed(parts)) or f"as {newest.tag}"
    facts = (release.shown("cuda"), f"{tag.framework} {framework}", release.shown("python"), release.needs_driver)
    return (tag.tag, tag.state, *facts, f"{'~' if release.arch and 'arch' in release.unverified else ''}{gpus}")


def _newest(tags: Sequence[TagStatus]) -> TagStatus:
    """The newest tag that images.yaml has: what new ones are compared with."""
    return [tag for tag in tags if tag.state != NEW][-1]


def _compare(newest: TagStatus, tag: TagStatus, known: Table) -> Optional[tuple[list[str], list[str]]]:
    """The GPUs that a new tag gains and loses against the newest one that images.yaml has; None when not known."""
    if tag.state != NEW or not newest.release.arch or not tag.release.arch:
        return None
    before, after = known.gpus(newest.release.arch), known.gpus(tag.release.arch)
    return [gpu for gpu in after if gpu not in before], [gpu for gpu in before if gpu not in after]


def _as_data(
    statuses: Mapping[str, Sequence[TagStatus]], known: Table, blind: Container[str], troubles: Sequence[str]
) -> dict[str, Any]:
    images = [
        {
            "image": name,
            "new_tags_known": name not in blind,
            "tags": [_tag_data(tag, _newest(tags), known) for tag in tags],
        }
        for name, tags in statuses.items()
    ]
    return {"images": images, "checked": known.checked, "troubles": troubles}


def _tag_data(tag: TagStatus, newest: TagStatus, known: Table) -> dict[str, Any]:
    gained, lost = _compare(newest, tag, known) or ([], [])
    return {**asdict(tag), "gpus": known.gpus(tag.release.arch), "gained": gained, "lost": lost}

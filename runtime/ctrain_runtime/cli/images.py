"""List published images, oldest first; inspect one image or compare two.

  ctrain images                                   # list the stores of this site
  ctrain images --store /apps/ctrain              # list this store (or set $CTRAIN_STORE)
  ctrain images show pytorch:prod                 # show layers, origin, tests and supported nodes; also without `show`
  ctrain images diff pytorch:prod pytorch:dev     # list packages that differ, and the size of each layer

An image is NAME[:CHANNEL|:VERSION], NAME@DIGEST or a path (.sif, sandbox). `tests`: passed/run before publishing.
`fits here`: this site's GPUs the image was compiled for (`fits`, if no GPUs are known here: all its GPUs).
"""

from __future__ import annotations

import argparse
import calendar
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctrain_runtime.base.paths import store_path
from ctrain_runtime.base.text import format_size, table
from ctrain_runtime.cli.output import Activity
from ctrain_runtime.doctor.contents import check_contents
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import ConfigError, CtrainError, EngineError, ImageUnusable, StoreError, UsageError
from ctrain_runtime.images import foreign, image, report
from ctrain_runtime.images.image import Image
from ctrain_runtime.plan.admission import compiled_models
from ctrain_runtime.store import lease, notes, sbom, signatures
from ctrain_runtime.store.lease import Lease
from ctrain_runtime.store.references import join, join_all
from ctrain_runtime.store.store import PublishedImage, Store, open_store, open_stores

HEAD = ("image", "version", "channel", "age", "size", "torch", "CUDA", "fits here", "tests", "signed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _common(parser, None, False)
    actions = parser.add_subparsers(dest="action", metavar="show|diff")
    show = actions.add_parser("show", help="show one image", allow_abbrev=False)
    add_show_arguments(show)
    diff = actions.add_parser("diff", help="compare two images", allow_abbrev=False)
    add_diff_arguments(diff)
    for action in (show, diff):  # SUPPRESS: keeps options given before the action
        _common(action, argparse.SUPPRESS, argparse.SUPPRESS)


def _common(parser: argparse.ArgumentParser, store: Any, as_json: Any) -> None:
    parser.add_argument(
        "--store", metavar="DIR", default=store, help="store directory (default: $CTRAIN_STORE, then the site's)"
    )
    parser.add_argument("--json", action="store_true", default=as_json, help="print one JSON object instead of text")


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", metavar="IMAGE")
    parser.add_argument("version", nargs="?", metavar="VERSION", help="IMAGE VERSION is the same as IMAGE:VERSION")


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="the old and the new image")


def execute(args: argparse.Namespace) -> int:
    if args.action == "show":
        print(show(_find(join(args.image, args.version), args), args.json))
    elif args.action == "diff":
        print(_diff(args))
    else:
        print(_list(args))
    return 0


def show(shown: Image, as_json: bool) -> str:
    """All that is known of an image."""
    try:
        packages, problem = sbom.packages(shown.path), ""
    except ImageUnusable as error:
        packages, problem = {}, error.message if shown.manifest.layers else ""
    signers, of_file = _signers(shown)
    leases, users = _users(shown.path)
    if as_json:
        version, listed = shown.manifest.version, report.as_list(packages)
        facts = {"version": version, "path": str(shown.path), "channel": shown.channel, **asdict(shown.manifest)}
        return json.dumps(
            {**facts, "signed_by": signers, "used_by": list(map(asdict, leases)), "packages": listed}, indent=2
        )
    named = [*signers, *(f"{key} (its file, not its name and version)" for key in of_file)]
    more = [*_noted(shown), *(("used by", user) for user in users)]
    return report.describe(shown, packages, problem, named, more)


def _noted(shown: Image) -> list[tuple[str, str]]:
    """Rows of what was noted of a version since it was published."""
    try:
        scan = notes.read_scan(shown.path, shown.manifest)
        deprecation = notes.read_deprecation(shown.path, shown.manifest)
    except ConfigError as error:
        return [("notes", error.message)]
    rows = [("scan", str(scan)), *(("", line) for line in scan.output)] if scan else []
    return [*rows, ("deprecated", deprecation.terms)] if deprecation else rows


def _users(path: Path) -> tuple[list[Lease], list[str]]:
    """The leases that jobs hold on an image, and these, or why they are unknown, in words."""
    try:
        leases = lease.of_image(path, time.time())
    except StoreError as error:
        return [], [error.message]
    return leases, list(map(str, leases))


def _signers(shown: Image) -> tuple[list[str], list[str]]:
    """The keys that an image's signatures name; those whose only signature is in the file of a version that has a name.

    A damaged file names none, which other rows report.
    """
    added = [path for path in signatures.added(shown.path) if signatures.covers(path, shown.manifest)]
    by_name, in_file = (
        list(dict.fromkeys(key for path in paths for key in _keys(path))) for paths in (added, [shown.path])
    )
    if not shown.manifest.version:
        return in_file, []
    return by_name, [key for key in in_file if key not in by_name]


def _keys(path: Path) -> list[str]:
    try:
        return signatures.keys(path)
    except ImageUnusable:
        return []


def _diff(args: argparse.Namespace) -> str:
    images = join_all(args.images)
    if len(images) != 2:
        raise UsageError(f"specify two images, not {len(images)}", "As in: ctrain images diff pytorch:prod pytorch:dev")
    old, new = (_find(reference, args) for reference in images)
    packages = report.changes(sbom.packages(old.path), sbom.packages(new.path))
    layers = report.layer_sizes(old.manifest, new.manifest)
    if args.json:
        sides = [{"version": side.manifest.version, "path": str(side.path)} for side in (old, new)]
        facts = {"old": sides[0], "new": sides[1], "layers": list(map(asdict, layers))}
        return json.dumps({**facts, "packages": list(map(asdict, packages))}, indent=2)
    return report.compare(old.manifest, new.manifest, layers, packages)


def _find(reference: str, args: argparse.Namespace) -> Image:
    if image.is_foreign(reference):
        return _examine(foreign.locate(Path(reference), Activity(sys.stderr).report))
    return image.find_any_arch((reference,), [] if image.is_path(reference) else _stores(args))


def _examine(located: Image) -> Image:
    """An image that ctrain did not build, with its facts. Raises EngineError if they cannot be learned."""
    engine, report = find_engine(), Activity(sys.stderr).report
    examined, problem = foreign.examine(located, engine, report, as_root=os.geteuid() == 0)
    if problem:
        raise EngineError(f"cannot examine {located.path}: {problem}")
    return examined


def _stores(args: argparse.Namespace) -> list[Store]:
    named = args.store or os.environ.get("CTRAIN_STORE")
    if named:
        return [open_store(store_path(named))]
    from ctrain_runtime.site.select import select_site  # only here: slow to import

    stores = open_stores(select_site().store_dirs())
    if not stores:
        hint = "Pass --store DIR or set CTRAIN_STORE; or make one: ctrain store init DIR"
        raise UsageError("no store configured", hint)
    return stores


def _list(args: argparse.Namespace) -> str:
    stores = _stores(args)
    contents = [store.scan() for store in stores]
    for store, content in zip(stores, contents):
        for finding in check_contents(store, content):
            if finding.level == "fail" or os.access(store.root, os.W_OK):  # users can do nothing about the others
                print(f"ctrain: {finding.text}. {finding.hint}".rstrip(". "), file=sys.stderr)
    images = [image for content in contents for image in content.images]
    gpus = _site_gpus() if any(image.manifest.requires.gpus for image in images) else ()
    if args.json:
        roots = [str(store.root) for store in stores]
        return json.dumps({"stores": roots, "images": [_as_data(image, gpus) for image in images]}, indent=2)
    tables = (_table(store, content.images, gpus) for store, content in zip(stores, contents))
    if len(stores) == 1:
        return next(tables)
    return "\n\n".join(f"store {store.root}\n{text}" for store, text in zip(stores, tables))


def _site_gpus() -> tuple[str, ...]:
    """GPU names of this cluster or machine; () if unknown."""
    from ctrain_runtime import schedulers
    from ctrain_runtime.site.select import select_site

    site = select_site().site
    try:
        return schedulers.get(site.scheduler).gpus(site)
    except CtrainError:
        return ()


def _table(store: Store, images: Sequence[PublishedImage], gpus: tuple[str, ...]) -> str:
    if not images:
        return f"store {store.root} has no images; publish one with: ctrain publish IMAGE --store {store.root}"
    head = HEAD if gpus else tuple(name.replace("fits here", "fits") for name in HEAD)
    rows = [_row(image, time.time(), gpus) for image in images]
    if any(image.scan for image in images):
        head = (*head, "scan")
        rows = [(*row, image.scan.verdict if image.scan else "-") for row, image in zip(rows, images)]
    if any(image.deprecation for image in images):
        head = (*head, "goes after")
        rows = [(*row, image.deprecation.until if image.deprecation else "") for row, image in zip(rows, images)]
    return table(head, rows)


def _as_data(image: PublishedImage, gpus: tuple[str, ...]) -> dict[str, Any]:
    version, fits = image.manifest.version, compiled_models(image.manifest, gpus) if gpus else None
    facts = {"version": version, "path": str(image.path), "channels": image.channels, "fits_here": fits}
    noted = {"scan": image.scan, "deprecation": image.deprecation}
    return {**facts, **{key: asdict(note) for key, note in noted.items() if note}, **asdict(image.manifest)}


def _row(image: PublishedImage, now: float, gpus: tuple[str, ...]) -> tuple[str, ...]:
    manifest = image.manifest
    run = [test for test in manifest.tests if not test.skipped]
    needs = manifest.requires
    return (
        manifest.name,
        manifest.version,
        ",".join(image.channels),
        format_age(manifest.published or manifest.built, now),
        format_size(manifest.size),
        manifest.software.get("torch", "-"),
        manifest.software.get("cuda", "-"),
        " ".join(compiled_models(manifest, gpus) if gpus else needs.gpus) or ("no GPU here" if needs.gpus else "-"),
        f"{sum(test.passed for test in run)}/{len(run)}",
        "yes" if image.signed else "",
    )


def format_age(stamp: str, now: float) -> str:
    """Time since an ISO 8601 UTC stamp, in whole units: 40 s, 12 min, 3 h, 210 d."""
    seconds = max(0, int(now - calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"

"""List the published images of a store, oldest first, with the channels that point to them.

  ctrain images                        of the store $CTRAIN_STORE
  ctrain images --store /apps/ctrain   of this one

The last column counts the tests that an image passed before it was published.
"""

from __future__ import annotations

import argparse
import calendar
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctrain_runtime.cli.text import size, table
from ctrain_runtime.errors import UsageError
from ctrain_runtime.store import Published, open_store

HEAD = ("image", "version", "channel", "age", "size", "torch", "CUDA", "tests")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help="the store's folder (default: $CTRAIN_STORE)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def execute(args: argparse.Namespace) -> int:
    root = args.store or os.environ.get("CTRAIN_STORE")
    if not root:
        raise UsageError("no store is named", "Give one with --store DIR or CTRAIN_STORE")
    images = open_store(Path(root)).images()
    if args.json:
        print(json.dumps({"store": root, "images": [_as_data(image) for image in images]}, indent=2))
    elif images:
        print(table(HEAD, [_row(image, time.time()) for image in images]))
    else:
        print(f"store {root} has no images yet; publish one with: ctrain publish IMAGE --store {root}")
    return 0


def _as_data(image: Published) -> dict[str, Any]:
    version = image.manifest.version
    return {"version": version, "path": str(image.path), "channels": image.channels, **asdict(image.manifest)}


def _row(image: Published, now: float) -> tuple[str, ...]:
    manifest = image.manifest
    passed = sum(test.passed for test in manifest.tests)
    return (
        manifest.name,
        manifest.version,
        ",".join(image.channels),
        age(manifest.published or manifest.built, now),
        size(manifest.size),
        manifest.software.get("torch", "-"),
        manifest.software.get("cuda", "-"),
        f"{passed}/{len(manifest.tests)}",
    )


def age(stamp: str, now: float) -> str:
    """Time since an ISO 8601 UTC stamp, in whole units: 40 s, 12 min, 3 h, 210 d."""
    seconds = max(0, int(now - calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"

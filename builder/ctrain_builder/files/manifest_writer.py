"""Writes manifests. They are read by ctrain_runtime.store.manifest."""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctrain_builder.files import atomic
from ctrain_runtime.store.manifest import CHECKSUM, Manifest, checksum

_TIME = "%Y-%m-%dT%H:%M:%SZ"


def write(path: Path, manifest: Manifest, mode: int = 0o644, group: int = -1) -> None:
    """Write the manifest file, whole or not at all."""
    atomic.write_text(path, as_text(manifest), mode, group)


def as_text(manifest: Manifest) -> str:
    return as_json(as_data(manifest))


def as_json(data: Mapping[str, Any]) -> str:
    """The text of the file that holds this object."""
    return json.dumps(data, indent=2) + "\n"


def as_data(manifest: Manifest) -> dict[str, Any]:
    """The JSON object in the file."""
    data = asdict(manifest)
    return {**data, CHECKSUM: checksum(data)}


def utc_now() -> str:
    """As in 2026-11-21T04:12:13Z."""
    return utc(time.time())


def utc(moment: float) -> str:
    """The same for a moment in seconds since 1970."""
    return time.strftime(_TIME, time.gmtime(moment))


def seconds_since(moment: str) -> float:
    """The time since a moment that `utc` has written."""
    return time.time() - calendar.timegm(time.strptime(moment, _TIME))

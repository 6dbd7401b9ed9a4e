"""Writes manifests. They are read by ctrain_runtime.store."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

from ctrain_builder import atomic
from ctrain_runtime.store import Manifest


def write(path: Path, manifest: Manifest, mode: int = 0o644, group: int = -1) -> None:
    """Write the manifest file, whole or not at all."""
    atomic.write_text(path, json.dumps(asdict(manifest), indent=2) + "\n", mode, group)


def utc_now() -> str:
    """As in 2026-11-21T04:12:13Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

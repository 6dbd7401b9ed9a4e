"""What the tests of `ctrain store sync` share: names, and what they look for in stores and registries."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctrain_builder.store import lifecycle
from ctrain_builder.store import verify as checks
from ctrain_runtime.store.store import Store, open_store
from samples.registry import Answer, Front, Request

CHUNK = 1 << 20  # of uploads, so that small images take several
MIB = 1 << 20
R1, R2 = "small_1.0-s-py3-r1", "small_1.0-s-py3-r2"
Sync = Callable[..., str]


def place(registry: Any) -> str:
    return f"oras://{registry.host}/lab/images"


def moved(before: Front) -> int:
    """Bytes that uploads have sent."""
    return sum(len(one.content) for one in before.requests if one.method == "PATCH")


def same(store: Store, root: Path, *stems: str) -> None:
    """Files and manifests are the same, byte for byte; and the other store is whole."""
    for stem in stems:
        for suffix in ("sif", "json"):
            assert (root / f"{stem}.{suffix}").read_bytes() == (store.root / f"{stem}.{suffix}").read_bytes()
    notes = checks.VerifyProgress(root.parent / "notes")
    assert [one.problem for one in checks.verify(checks.subjects(open_store(root)), notes, 1) if one.problem] == []
    assert list(lifecycle.garbage(open_store(root), 0, time.time())) == []
    assert {path.stem for path in root.glob("*.json")} - {"ctrain-store"} == set(stems)


def channels(root: Path) -> dict[str, tuple[str, ...]]:
    return {image.manifest.version: image.channels for image in open_store(root).images()}


def spoil(
    method: str, path: str, change: Callable[[Answer], None], times: int = 1
) -> Callable[[Request, Answer], None]:
    """A fault of the first answers to such requests; of blobs only those that are images."""
    seen: list[Request] = []

    def fault(request: Request, answer: Answer) -> None:
        small = request.method == "GET" and "/blobs/" in path and len(answer.body) < MIB
        if request.method == method and path in request.path and not small and len(seen) < times:
            seen.append(request)
            change(answer)

    return fault

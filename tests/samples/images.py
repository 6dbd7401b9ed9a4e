"""Tiny image files and stores, written by hand as docs/store.md and the SIF specification describe them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrain_runtime.image import DESCRIPTOR, HEADER, PARTITION
from ctrain_runtime.store import Manifest
from samples.plans import a_manifest

HEADER_OF = {"x86_64": b"02", "aarch64": b"04", "ppc64le": b"06"}


def sif(
    arch: bytes = b"02", *, magic: bytes = b"SIF_MAGIC\0", kind: int = PARTITION, data: bytes = b"squashfs"
) -> bytes:
    """A SIF with one used descriptor of `kind`, one unused one, and `data`."""
    end = HEADER.size + 2 * DESCRIPTOR.size
    header = HEADER.pack(
        *(b"#!/usr/bin/env run-singularity\n", magic, b"01\0", arch, bytes(16), 0, 0, 1),
        *(2, HEADER.size, 2 * DESCRIPTOR.size, end, len(data)),
    )
    used = DESCRIPTOR.pack(kind, True, 1, 1, 0, end, len(data), len(data), 0, 0, 0, 0, b"rootfs", b"")
    return header + used + bytes(DESCRIPTOR.size) + data


def write_image(folder: Path, *, content: bytes = b"", **changes: Any) -> Path:
    """An image file with its manifest beside it, named as in a store; returns the path of the .sif."""
    content = content or sif()
    manifest = a_manifest(**{"size": len(content), **changes})
    path = folder / manifest.file_name
    path.write_bytes(content)
    write_manifest(path.with_suffix(".json"), manifest)
    return path


def write_manifest(path: Path, manifest: Manifest) -> None:
    path.write_text(json.dumps(dataclasses.asdict(manifest)), encoding="utf-8")


def write_store(root: Path, *images: Mapping[str, Any], channels: Mapping[str, str] = {}) -> Path:  # read
    """A store with an image for each of `images` (changes of a_manifest) and the channels {link name: image file}."""
    (root / "channels").mkdir(parents=True)
    (root / "ctrain-store.json").write_text('{"layout": 1}\n')
    for changes in images:
        write_image(root, **changes)
    for link, target in channels.items():
        (root / "channels" / f"{link}.sif").symlink_to(f"../{target}")
    return root

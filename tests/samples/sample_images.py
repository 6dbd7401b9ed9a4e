"""Tiny image files and stores, written by hand as docs/store-format.md and the SIF specification describe them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ctrain_runtime.store import signatures
from ctrain_runtime.store.manifest import Manifest, checksum
from ctrain_runtime.store.sif import DESCRIPTOR, HEADER, PARTITION, SIGNATURE
from samples.plans import a_manifest

GROUP = 0xF0000001  # number 1, as SIFs have it
HEADER_OF = {"x86_64": b"02", "aarch64": b"04", "ppc64le": b"06"}


def sif(
    arch: bytes = b"02",
    *,
    magic: bytes = b"SIF_MAGIC\0",
    kind: int = PARTITION,
    data: bytes = b"squashfs",
    more: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """A SIF with an object of `kind` that holds `data`, those of `more` as (kind, data), and an unused descriptor.

    They are in group 1, and signatures are linked to it.
    """
    objects = [(kind, data), *more]
    end = HEADER.size + (len(objects) + 1) * DESCRIPTOR.size
    content = b"".join(data for _, data in objects)
    header = HEADER.pack(
        *(b"#!/usr/bin/env run-singularity\n", magic, b"01\0", arch, bytes(16), 0, 0, 1),
        *(len(objects) + 1, HEADER.size, end - HEADER.size, end, len(content)),
    )
    used = b""
    for number, (what, held) in enumerate(objects, 1):
        group, link = (0, GROUP) if what == SIGNATURE else (GROUP, 0)
        used += DESCRIPTOR.pack(what, True, number, group, link, end, len(held), len(held), 0, 0, 0, 0, b"", b"")
        end += len(held)
    return header + used + bytes(DESCRIPTOR.size) + content


def write_signature(image: Path, manifest: Manifest, key: str = "A" * 40) -> Path:
    """A signature on name and digest beside an image, as `ctrain store sign` makes it; valid for a stand-in alone."""
    path = signatures.path_for(image, key)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(statement_file(manifest))
    return path


def statement_file(manifest: Manifest) -> bytes:
    """A file with a statement and a signature, which is valid for a stand-in alone."""
    return sif(kind=0x4007, data=signatures.statement(manifest), more=[(SIGNATURE, b"signed")])


def sbom(**packages: str) -> bytes:
    """A package list as in an image: of Python packages, name=version."""
    purls = {name: f"pkg:pypi/{name}@{version}" for name, version in packages.items()}
    parts = [{"name": name, "version": packages[name], "purl": purl, "type": "library"} for name, purl in purls.items()]
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.6", "components": parts}).encode()


def write_image(folder: Path, *, content: bytes = b"", **changes: Any) -> Path:
    """An image file with its manifest beside it, named as in a store; returns the path of the .sif."""
    content = content or sif()
    manifest = a_manifest(**{"size": len(content), **changes})
    path = folder / manifest.file_name
    path.write_bytes(content)
    write_manifest(path.with_suffix(".json"), manifest)
    return path


def write_manifest(path: Path, manifest: Manifest) -> None:
    data = dataclasses.asdict(manifest)
    path.write_text(json.dumps({**data, "checksum": checksum(data)}), encoding="utf-8")


def write_store(root: Path, *images: Mapping[str, Any], channels: Mapping[str, str] = {}) -> Path:  # read
    """A store with an image for each of `images` (changes of a_manifest) and the channels {link name: image file}."""
    (root / "channels").mkdir(parents=True)
    (root / "ctrain-store.json").write_text('{"layout": 1}\n')
    for changes in images:
        write_image(root, **changes)
    for link, target in channels.items():
        (root / "channels" / f"{link}.sif").symlink_to(f"../{target}")
    return root

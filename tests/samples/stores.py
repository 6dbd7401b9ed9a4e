"""Images of the real engine, small and quickly made, and disks to have stores on. Needs root for the disks."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import Layer, Manifest
from ctrain_runtime.store.manifest import TestResult as Result

BASE, LAYER = 3_000_000, 100_000  # bytes


@dataclass(frozen=True)
class Image:
    """A base that all have (random bytes in a squashfs), and a layer of its own."""

    path: Path
    manifest: Manifest


class Images:
    """Makes images in a folder, as many as are wanted."""

    def __init__(self, folder: Path, size: int = BASE) -> None:
        self._folder, self._numbers = folder, itertools.count()
        (folder / "random").write_bytes(os.urandom(size))
        argv = ["mksquashfs", str(folder / "random"), str(folder / "base"), "-noI", "-noD", "-noF", "-quiet"]
        subprocess.run([*argv, "-no-progress"], check=True)

    def new(self) -> Image:
        number = next(self._numbers)
        part, path = self._folder / "part", self._folder / f"{number}.sif"
        part.write_bytes(os.urandom(LAYER))
        subprocess.run(["apptainer", "sif", "new", str(path)], check=True)
        add = ["apptainer", "sif", "add", "--datatype", "4", "--partfs", "1", "--partarch", "2", "--groupid", "1"]
        for kind, source in (("2", self._folder / "base"), ("4", part)):
            subprocess.run([*add, "--parttype", kind, str(path), str(source)], check=True)
        layers = tuple(
            Layer(name, name, entry.size, file_digest(path, entry.offset, entry.size))
            for name, entry in zip(("base", "layer"), sif.partitions(path))
        )
        return Image(path, _manifest(file_digest(path), path.stat().st_size, layers))


def _manifest(digest: str, size: int, layers: tuple[Layer, ...]) -> Manifest:
    tests = (Result("imports", True, "1.0"),)
    facts = {"name": "small", "tag": "1.0", "stack": "s", "arch": "amd64", "built": "2026-11-21T00:00:00Z"}
    return Manifest(**facts, digest=digest, size=size, layers=layers, software={}, tests=tests, tools={})


@contextlib.contextmanager
def disk(folder: Path, kind: str, megabytes: int) -> Iterator[Path]:
    """A file system of its own."""
    file, place = folder / "disk", folder / "mounted"
    place.mkdir()
    with file.open("wb") as new:
        new.truncate(megabytes << 20)
    subprocess.run([f"mkfs.{kind}", "-q", *(["-F"] if kind == "ext4" else []), str(file)], check=True)
    subprocess.run(["mount", "-o", "loop", str(file), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)

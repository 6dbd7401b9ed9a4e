"""Finds the image of a run, by name in a store or by path, and checks that it is complete and for this architecture."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_runtime.errors import ConfigError, ImageNotFound, ImageUnusable
from ctrain_runtime.store import sif, store
from ctrain_runtime.store.manifest import FLAT_SUFFIX, Manifest, read_manifest
from ctrain_runtime.store.references import resolve

LAYER_MARKER = ".singularity.d/ctrain-layer"  # in the container; holds the key of the topmost mounted layer
# Of images that ctrain built; they remain when the manifest is lost.
LAYERS_LABEL, KEY_LABEL, FLAT_LABEL = "org.ctrain.layers", "org.ctrain.key", "org.ctrain.flat"
OCI_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}  # by `uname -m`


@dataclass(frozen=True)
class Image:
    """An image file with its manifest. `channel` is a channel that points to it, "" if none."""

    path: Path
    manifest: Manifest
    channel: str = ""

    @property
    def plain_argv(self) -> tuple[str, ...]:
        """The command that runs it without ctrain; the program's argv follows."""
        gpus = ["--nv"] if "cuda" in self.manifest.software else []
        return ("apptainer", "exec", *gpus, str(self.path))

    @property
    def foreign(self) -> bool:
        """Whether it has no manifest: ctrain did not build it, or has lost that."""
        return not self.manifest.tag

    @property
    def marker(self) -> str:
        """The contents of LAYER_MARKER when all layers are mounted; "" for an image without layers above its base."""
        layers, labels = self.manifest.layers, self.manifest.labels
        if not layers and " " in labels.get(LAYERS_LABEL, "") and labels.get(FLAT_LABEL) == "no":
            return labels.get(KEY_LABEL, "")
        return layers[-1].key if len(layers) > 1 else ""


def find(references: tuple[str, ...], stores: list[store.Store], machine: str) -> Image:
    """The image for the first of `references` (NAME[:CHANNEL|:VERSION], NAME@DIGEST or a path) that exists.

    `machine` is the output of `uname -m`. Raises ImageNotFound or ImageUnusable.
    """
    return check(find_any_arch(references, stores), machine)


def check(image: Image, machine: str) -> Image:
    """`image`, if its file is complete and for this architecture. Raises ImageUnusable."""
    architecture = image.manifest.arch if image.foreign else sif.check(image.path)
    if architecture not in ("", OCI_ARCH.get(machine, machine)):  # "": of a sandbox
        problem = f"architecture mismatch: {image.path} is {architecture}, this machine is {machine}"
        raise ImageUnusable(problem, "Select another image")
    if not image.foreign:
        check_size(image.path, image.manifest)
    return image


def check_size(path: Path, manifest: Manifest) -> None:
    """Raises ImageUnusable for an image that is truncated, or of another size for another reason."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ImageUnusable(f"cannot read {path}: {error.strerror}", "Retry, or publish it again") from error
    if size != manifest.size:
        problem = f"size mismatch: {path} has {size} bytes, its manifest records {manifest.size}"
        raise ImageUnusable(problem, "Copy or publish it again")


def find_any_arch(references: tuple[str, ...], stores: list[store.Store]) -> Image:
    """As `find`, for any architecture. Of an image in a store, only the manifest is read."""
    return _at_path(Path(references[0])) if is_path(references[0]) else _in_stores(references, stores)


def is_path(reference: str) -> bool:
    return "/" in reference or reference.endswith(".sif")


def is_foreign(reference: str) -> bool:
    """Whether `reference` is the path of a sandbox, or of a file without ctrain's manifest beside it."""
    path = Path(reference)
    has_manifest = path.resolve().with_suffix(".json").is_file() and not path.is_dir()
    return is_path(reference) and path.exists() and not has_manifest


def is_pulled(reference: str) -> bool:
    """Whether `reference` has a scheme, as in docker://debian:12."""
    return "://" in reference


def _at_path(path: Path) -> Image:
    if not path.is_file():
        raise ImageNotFound(f"image file {path} not found", "List published images with: ctrain images")
    sif.check(path)
    manifest = path.resolve().with_suffix(".json")
    if not manifest.is_file():
        raise ImageUnusable(
            f"{path} has no manifest: {manifest.name} not found in its directory",
            "Copy the .json file together with the .sif, or build the image with: ctrain build",
        )
    try:
        return Image(path.resolve(), read_manifest(manifest))
    except ConfigError as error:
        raise ImageUnusable(error.message, error.hint) from error


def _in_stores(references: tuple[str, ...], stores: list[store.Store]) -> Image:
    missing: list[ImageNotFound] = []
    for reference in references:
        try:
            image = resolve(stores, reference)
        except ImageNotFound as error:
            missing.append(error)
            continue
        channel = store.DEFAULT_CHANNEL if store.DEFAULT_CHANNEL in image.channels else "".join(image.channels[:1])
        return Image(image.path, image.manifest, channel)
    if not missing:
        raise ImageNotFound("the job has no image", "Pass --image NAME; list images with: ctrain images")
    others = "".join(f"; neither is {reference!r}" for reference in references[1:])
    raise ImageNotFound(f"{missing[0].message}{others}", missing[0].hint)


def find_flat_variant(image: Image) -> Optional[Image]:
    """The flat image with the same layers in the directory of `image`, for engines that do not mount layers.

    Manifests that cannot be read are skipped: of others, they are no reason against this run.
    """
    keys = [layer.key for layer in image.manifest.layers]
    for path in store.list_directory(image.path.parent, f"*{FLAT_SUFFIX}.json"):
        with contextlib.suppress(ConfigError):
            manifest = read_manifest(path)
            same = manifest.name == image.manifest.name and [layer.key for layer in manifest.layers] == keys
            if manifest.flat and same:
                return Image(path.with_suffix(".sif"), manifest, image.channel)
    return None

"""The image that a run uses: found by name in a store or by path, and checked to be a whole SIF for this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_runtime import sif, store
from ctrain_runtime.errors import ConfigError, ImageNotFound, ImageUnusable
from ctrain_runtime.manifest import FLAT_SUFFIX, Manifest, read_manifest

LAYER_MARKER = ".singularity.d/ctrain-layer"  # inside; holds the key of the topmost layer that is mounted
OCI_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}  # as `uname -m` says it


@dataclass(frozen=True)
class Image:
    """An image file with its manifest. `channel` is the name by which it was found, if any."""

    path: Path
    manifest: Manifest
    channel: str = ""

    @property
    def sif_files(self) -> tuple[tuple[Path, int, str], ...]:
        """The files that it is made of, lowest first, with their sizes in bytes and digests: for most images, one."""
        manifest = self.manifest
        below = manifest.below
        lowest = [(self.path.parent / store.BASES / below.name, below.size, below.digest)] if below else []
        return (*lowest, (self.path, manifest.size, manifest.digest))

    @property
    def exec_path(self) -> Path:
        """The file that an engine runs."""
        return self.sif_files[0][0]

    @property
    def overlay_args(self) -> tuple[str, ...]:
        """The words by which an engine mounts over `root` what lies above it, lowest first."""
        return tuple(word for path, *_ in self.sif_files[1:] for word in ("--overlay", f"{path}:ro"))

    @property
    def plain_argv(self) -> tuple[str, ...]:
        """How an engine runs it without ctrain; the program follows."""
        gpus = ["--nv"] if "cuda" in self.manifest.software else []
        return ("apptainer", "exec", *gpus, *self.overlay_args, str(self.exec_path))

    @property
    def marker(self) -> str:
        """What the marker inside says when all layers are mounted; "" for a lone base, which has none to be ignored."""
        layers = self.manifest.layers
        return layers[-1].key if len(layers) > 1 else ""


def find(references: tuple[str, ...], stores: list[store.Store], machine: str) -> Image:
    """The image for the first of `references` (NAME[:CHANNEL|:VERSION], NAME@DIGEST or a path) that exists.

    `machine` is what `uname -m` says. Raises ImageNotFound or ImageUnusable.
    """
    return check(find_any_arch(references, stores), machine)


def check(image: Image, machine: str) -> Image:
    """`image`, if its files are whole and for this machine. Raises ImageUnusable."""
    for path, size, _ in image.sif_files:
        architecture = sif.check(path)
        if architecture != OCI_ARCH.get(machine, machine):
            raise ImageUnusable(f"{path} is for {architecture}, this machine is {machine}", "Choose another image")
        if path.stat().st_size != size:
            what = f"{path} has {path.stat().st_size} bytes, its manifest says {size}"
            raise ImageUnusable(what, "Publish or copy it again")
    return image


def find_any_arch(references: tuple[str, ...], stores: list[store.Store]) -> Image:
    """As `find`, for any machine. Of an image in a store only the manifest is read."""
    return _at_path(Path(references[0])) if is_path(references[0]) else _in_stores(references, stores)


def is_path(reference: str) -> bool:
    return "/" in reference or reference.endswith(".sif")


def _at_path(path: Path) -> Image:
    if not path.is_file():
        raise ImageNotFound(f"there is no image file {path}", "ctrain images lists the published ones")
    sif.check(path)
    beside = path.resolve().with_suffix(".json")
    if not beside.is_file():
        raise ImageUnusable(
            f"{path} was not made by ctrain: no manifest {beside.name} lies beside it",
            "Copy the .json together with the .sif, or build the image with ctrain build",
        )
    try:
        return Image(path.resolve(), read_manifest(beside))
    except ConfigError as error:
        raise ImageUnusable(error.message, error.hint) from error


def _in_stores(references: tuple[str, ...], stores: list[store.Store]) -> Image:
    missing = None
    for reference in references:
        try:
            found = store.resolve(stores, reference)
        except ImageNotFound as error:
            missing = missing or error
            continue
        channel = store.DEFAULT_CHANNEL if store.DEFAULT_CHANNEL in found.channels else "".join(found.channels[:1])
        return Image(found.path, found.manifest, channel)
    raise missing or ImageNotFound("the job names no image", "Give one with --image")


def find_flat_variant(image: Image) -> Optional[Image]:
    """The flat image with the same layers as `image`, from the same folder; for engines that mount no layers."""
    keys = [layer.key for layer in image.manifest.layers]
    for path in sorted(image.path.parent.glob(f"*{FLAT_SUFFIX}.json")):
        manifest = read_manifest(path)
        if manifest.flat and manifest.name == image.manifest.name and [layer.key for layer in manifest.layers] == keys:
            return Image(path.with_suffix(".sif"), manifest, image.channel)
    return None

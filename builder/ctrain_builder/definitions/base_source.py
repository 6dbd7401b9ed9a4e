"""By what the source of a base is known: the digest of its contents, which is part of the layer's key.

Files are read, tags are resolved by their registry or library. Packages of mirrors (debootstrap, dnf ...) have no
digest: such a base counts by its age (`--base-max-age`). Every other source is refused, with what can take its place: a
base that changes unseen would be up to date forever.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Optional

from ctrain_builder.definitions import files
from ctrain_builder.definitions.definition import Definition
from ctrain_runtime.errors import BuildError, ConfigError, ImageNotFound, ImageUnusable
from ctrain_runtime.store import sif

# Headers that name no image but install packages, or nothing.
PACKAGES = ("arch", "busybox", "debootstrap", "dnf", "scratch", "yum", "zypper")
_ARCHIVES = ("docker-archive", "oci-archive")
_FILES = ("localimage", "oci", *_ARCHIVES)
_INSTEAD = {
    "docker-daemon": "Save it, docker save -o FILE.tar NAME, and use `Bootstrap: docker-archive` with that file",
    "shub": "Singularity Hub is closed; use an image of a registry: `Bootstrap: docker`",
}
_INDEX = "index.json"  # of an OCI layout: names all that is in it by digests


def identify(base: Definition, resolve: Callable[[str], str]) -> tuple[str, str]:
    """What a (rendered) base starts from: the reference by digest of a docker image, else ""; and the digest, "" for
    packages. `resolve` gives the digest of HOST/NAME:TAG, oras://HOST/... or library://HOST/...

    Raises ConfigError, ImageNotFound for a file that is missing, and what `resolve` raises.
    """
    bootstrap, source = base.header["bootstrap"].lower(), located(base)
    if bootstrap in PACKAGES:
        return "", ""
    if not source:
        raise ConfigError(f"{base.path}: `Bootstrap: {bootstrap}` needs a line `From:`")
    if bootstrap == "docker":
        return _by_digest(base, source, resolve)
    if bootstrap in ("oras", "library"):
        return "", resolve(_reference(base, bootstrap, source))
    if bootstrap == "localimage":
        return "", _local_image(base, source)
    if bootstrap in _ARCHIVES:
        return "", f"sha256:{files.digest(_existing(base, source))}"
    if bootstrap == "oci":
        return "", _layout(base, source)
    hint = _INSTEAD.get(bootstrap, "Use an image of a registry, or a file: docker, localimage, docker-archive ...")
    raise ConfigError(f"{base.path}: a base of `Bootstrap: {bootstrap}` can change unseen", hint)


def located(base: Definition) -> str:
    """What `From:` of a (rendered) base names. A relative path is below the directory of its definition, from wherever
    the build is started."""
    source = base.header.get("from", "")
    is_file = source and base.header["bootstrap"].lower() in _FILES
    return str((base.path.parent / source).resolve()) if is_file else source


def local_size(base: Definition) -> Optional[int]:
    """The bytes of the files that a (rendered) base starts from; None if they are elsewhere, or cannot be read."""
    bootstrap, source = base.header["bootstrap"].lower(), located(base)
    with contextlib.suppress(ConfigError, ImageNotFound, OSError):
        if bootstrap in ("localimage", *_ARCHIVES):
            return _existing(base, source).stat().st_size
        if bootstrap == "oci":
            return sum(path.stat().st_size for path in _index(base, source).parent.glob("blobs/*/*"))
    return None


def require_unchanged(base: Definition, digest: str, resolve: Callable[[str], str]) -> None:
    """Raise BuildError if what was just unpacked is no longer what was planned: the layer's key would not be true."""
    if base.header["bootstrap"].lower() != "docker" and identify(base, resolve)[1] != digest:
        raise BuildError(f"{base.header.get('from', '')} has changed since the build began", "Build again")


def _by_digest(base: Definition, source: str, resolve: Callable[[str], str]) -> tuple[str, str]:
    if "registry" in base.header or "namespace" in base.header:
        raise ConfigError(
            f"{base.path}: Registry and Namespace are not supported", "Put the whole reference in `From:`"
        )
    name, _, digest = source.partition("@")
    digest = digest or resolve(source)
    directory, slash, last = name.rpartition("/")
    return f"{directory}{slash}{last.partition(':')[0]}@{digest}", digest


def _reference(base: Definition, bootstrap: str, source: str) -> str:
    """With its scheme and its host, as the runtime resolves it. Engines get a library's host by another header line."""
    name = source.removeprefix(f"{bootstrap}:").removeprefix("//")
    if bootstrap == "oras":
        return f"oras://{name}"
    library = base.header.get("library", "").removeprefix("https://").strip("/")
    if not library:
        hint = "Add the line `Library: https://HOST`; the Sylabs Cloud has HOST library.sylabs.io"
        raise ConfigError(f"{base.path}: `Bootstrap: library` does not name its library", hint)
    return f"library://{library}/{name}"


def _local_image(base: Definition, source: str) -> str:
    path = Path(source)
    if path.is_dir():
        hint = f"Make a file of it: apptainer build FILE.sif {source}; then `From: FILE.sif`"
        raise ConfigError(f"{base.path}: {source} is a directory, which can change unseen", hint)
    path = _existing(base, source)
    if _has_layers(path):
        what = f"{base.path}: {source} has layers, which engines leave out of `Bootstrap: localimage`"
        raise ConfigError(what, f"Build on it in images.yaml: from: {source}")
    return f"sha256:{files.digest(path)}"


def _has_layers(path: Path) -> bool:
    try:
        return len(sif.partitions(path)) > 1
    except ImageUnusable:  # another format, which has none
        return False


def _layout(base: Definition, source: str) -> str:
    """The digest of an OCI layout's index: engines compare all below it with the digests in it."""
    return f"sha256:{hashlib.sha256(_index(base, source).read_bytes()).hexdigest()}"


def _index(base: Definition, source: str) -> Path:
    """The index of the OCI layout PATH or PATH:TAG."""
    directory = next((place for place in _places(source) if place.is_dir()), Path(source))
    return _existing(base, str(directory / _INDEX))


def _existing(base: Definition, source: str) -> Path:
    """The file that `From:` names; an archive may be PATH:TAG."""
    for path in _places(source):
        if path.is_file():
            return path
    hint = "Correct `From:` (a relative path starts at the definition's directory), or build where the file is"
    raise ImageNotFound(f"{base.path}: there is no file {source}", hint)


def _places(source: str) -> tuple[Path, Path]:
    """What PATH or PATH:TAG may name."""
    return Path(source), Path(source.rpartition(":")[0] or source)

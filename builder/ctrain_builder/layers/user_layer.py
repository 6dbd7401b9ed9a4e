"""User layers: what a requirements file or a script adds to a published image, as one small squashfs file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ctrain_builder.definitions import files
from ctrain_builder.definitions.files import SourceFile
from ctrain_builder.files import atomic
from ctrain_builder.files.manifest_writer import utc_now
from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import failure, lowerdir
from ctrain_builder.layers.container import CommandFailed, Container, LowerLayers
from ctrain_builder.layers.pack import pack
from ctrain_builder.layers.user_source import is_script
from ctrain_builder.layers.workspace import Workspace
from ctrain_runtime.base import command
from ctrain_runtime.errors import BuildError, EngineError
from ctrain_runtime.images import user_layer
from ctrain_runtime.images.image import Image
from ctrain_runtime.images.user_layer import Description, Parent, UserLayer

# Runs in the container, as root; its arguments are the command that adds things.
_INSIDE = """\
set -eu
umask 022
. /mnt/build-env.sh
unset BASH_ENV PIP_CONSTRAINT
export PYTHONDONTWRITEBYTECODE=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off
packages() { python3 -m pip list --format=freeze 2>/dev/null || :; }
packages >/mnt/before
sed 's/==/===/' /mnt/before >/mnt/constraints.txt # for ==, 2.13.0+cu130 is a 2.13.0
cd /mnt/source
"$@"
packages >/mnt/after
"""
_CONSTRAINTS = "/mnt/constraints.txt"

# What stays the image's: Python packages, programs, libraries, directories.
IMAGE_PACKAGES = ("torch", "torchvision", "torchaudio", "triton", "tensorflow", "horovod", "deepspeed", "mpi4py")
_MODULE = re.compile(rf"(?:^|/)(?:site|dist)-packages/({'|'.join(IMAGE_PACKAGES)})(?:[/.-]|$)")
_PROGRAM = re.compile(r"(?:^|/)bin/(?:mpirun|mpiexec|orted|prterun|nvcc|horovodrun|torchrun)$")
_LIBRARY = re.compile(
    r"(?:^|/)lib(?:nccl|mpi|open-rte|open-pal|pmix|uc[mpst]|cuda|cudart|cudnn|cublas|cufft|curand|cusolver|cusparse"
    r"|cupti|nvrtc|nvJitLink)(?![a-z])[^/]*$"
)
_DIRECTORY = re.compile(r"^(?:usr/local/(?:cuda|mpi)(?:-[^/]*)?|opt/hpcx(?:-[^/]*)?)(?:/|$)")
_PACKAGE_DIRECTORY = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_SHOWN = 3


def make(
    container: Container,
    image: Image,
    sources: Sequence[SourceFile],
    workspace: Workspace,
    log: Path,
    target: Path,
) -> UserLayer:
    """Make the layer that the first of the `sources` describes on `image`, as `target`; the others are all that it sees
    besides. Raises BuildError, EngineError, DiskFullError.
    """
    source = sources[0].path
    os.umask(0o022)  # a layer must not depend on the umask of who builds it
    below = LowerLayers(image.path)
    upper = container.new_overlay()
    try:
        _run(container, below, sources, workspace, log)
    finally:
        if _started(workspace):
            made = [*container.overlay_directories, workspace.mnt_dir, workspace.scratch]
            container.take_ownership(image.path, made, log)
    before, after = (_packages(Tree(workspace.mnt_dir).read(name) or "") for name in ("before", "after"))
    added = {name: version for name, version in after.items() if before.get(name) != version}
    description = _description(image, source, added)
    Tree(upper).write(f"{user_layer.USER_LAYERS}/{description.key}.json", description.as_json())
    packed = pack(container, upper, below, log)
    _check(container, below, _listing(packed), before, after, source, log)
    user_layer.seal(packed, description)
    _put(packed, target)
    return user_layer.read(target)


def command_for(source: Path, text: str) -> list[str]:
    """The command that runs in the container: a script (NAME.sh, or with #!), or else pip with a requirements file."""
    inside = f"/mnt/source/{source.name}"
    constrained = ["env", f"PIP_CONSTRAINT={_CONSTRAINTS}"]
    if text.startswith("#!"):
        return [*constrained, *shlex.split(text.splitlines()[0][2:]), inside]
    if is_script(source, text):
        return [*constrained, "/bin/sh", "-ex", inside]
    return ["python3", "-m", "pip", "install", "--constraint", _CONSTRAINTS, "--requirement", inside]


def _run(
    container: Container, below: LowerLayers, sources: Sequence[SourceFile], workspace: Workspace, log: Path
) -> None:
    source = sources[0].path
    files.stage(sources, workspace.mnt_dir / "source")  # copies: some build systems write beside what they build
    (workspace.mnt_dir / "inside.sh").write_text(_INSIDE)
    overlays = [*below.overlays, str(container.overlay)]
    argv = container.argv("exec", below.base, overlays=overlays, binds=workspace.binds, as_root=True)
    try:
        container.run([*argv, "/bin/sh", "/mnt/inside.sh", *command_for(source, source.read_text())], log)
    except CommandFailed as error:
        output = failure.read(log)
        if not _started(workspace):
            what = f"{container.engine.name} can't run a container with an overlay over {below.base}{output}"
            raise EngineError(what, f"Log: {log}") from error
        reason = conflict(source.name, log.read_text(errors="replace"))
        if reason:
            hint = f"A layer only adds to its image; pip's output: {log}"
            raise BuildError(reason, hint) from error
        what = f"{source.name} failed with exit code {error.code}{output}"
        raise BuildError(what, f"Log: {log}") from error


def _started(workspace: Workspace) -> bool:
    """Whether a container has run at all."""
    return Tree(workspace.mnt_dir).status("before") is not None


def conflict(source: str, log: str) -> str:
    """What pip wants that the image has otherwise, in a line; "" when it failed for another reason."""
    _, _, cause = log.partition("The conflict is caused by:")
    pinned = {
        _normal(name): (name, version) for name, version in re.findall(r"\(constraint\) ([\w.-]+)===(\S+)", cause)
    }
    for who, name, rest in re.findall(r"(?m)^ +(.+ depends on|The user requested) ([\w.-]+)(\S*.*)$", cause):
        if _normal(name) in pinned:
            by = source if who == "The user requested" else f"{who.removesuffix(' depends on')}, for {source},"
            return f"{by} requires {name}{rest}, the image has {' '.join(pinned[_normal(name)])}"
    return ""


def _packages(text: str) -> dict[str, str]:
    """Normalised name -> version, from `pip list --format=freeze`."""
    pairs = (line.split("==", 1) for line in text.splitlines() if "==" in line)
    return {_normal(name): version for name, version in pairs}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _description(image: Image, source: Path, packages: dict[str, str]) -> Description:
    manifest = image.manifest
    parent = Parent(manifest.name, manifest.version, manifest.digest)
    about = Description("", parent, source.name, f"sha256:{files.digest(source)}", utc_now(), packages)
    return dataclasses.replace(about, key=hashlib.sha256(about.as_json().encode()).hexdigest())


def _listing(packed: Path) -> list[str]:
    """The paths in a squashfs that are not directories; deleted names are there too, as devices."""
    listing = command.run(["unsquashfs", "-lln", str(packed)], timeout=600).stdout
    entries = re.findall(r"(?m)^([^d])\S+ .*? squashfs-root/(.+)$", listing)
    return [path.split(" -> ")[0] if kind == "l" else path for kind, path in entries]


def offences(paths: Iterable[str], packages: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Those of a layer's `paths` that change or hide what is the image's, and those that do if they are in the image.

    `packages` are those of the image.
    """
    certain: list[str] = []
    doubtful: list[str] = []
    for path in paths:
        module = _MODULE.search(path)
        private = _PACKAGE_DIRECTORY.search(path)
        if (module and module[1] in packages) or _PROGRAM.search(path) or _DIRECTORY.search(path):
            certain.append(path)
        elif _LIBRARY.search(path):
            (doubtful if private else certain).append(path)
    return certain, doubtful


def _check(
    container: Container,
    below: LowerLayers,
    listing: list[str],
    before: Mapping[str, str],
    after: Mapping[str, str],
    source: Path,
    log: Path,
) -> None:
    """Refuse a layer that adds nothing, and one that changes or hides what is the image's."""
    if all(path.startswith(f"{user_layer.USER_LAYERS}/") for path in listing):
        raise BuildError(
            f"{source.name} adds nothing: the image already has all of it", "Run the image without a layer"
        )
    certain, doubtful = offences(listing, before)
    existing = lowerdir.existing(container, below, [PurePosixPath(path) for path in doubtful], log)
    replaced = [f"/{path}" for path in (*certain, *existing)]
    replaced = replaced or [name for name in IMAGE_PACKAGES if name in before and before[name] != after.get(name)]
    if replaced:
        more = f" and {len(replaced) - _SHOWN} more" if len(replaced) > _SHOWN else ""
        raise BuildError(
            f"{source.name} replaces or hides files of the image: {', '.join(replaced[:_SHOWN])}{more}",
            "Leave torch, NCCL, MPI and CUDA to the image, or build an image of your own; see: ctrain help images",
        )


def _put(packed: Path, target: Path) -> None:
    """Copy the finished file to where the user wants it, whole or not at all."""
    part = atomic.unfinished(target)
    try:
        shutil.copyfile(packed, part)
        atomic.move(part, target)
    finally:
        part.unlink(missing_ok=True)

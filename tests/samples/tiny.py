"""A tiny real image, made of programs of this (Debian) machine: a base for builds that run for real."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = (
    *("sh", "bash", "env", "cat", "cp", "mv", "ln", "rm", "rmdir", "mkdir", "chmod", "chown", "touch", "ls", "stat"),
    *("dirname", "basename", "readlink", "find", "grep", "sed", "sort", "head", "tail", "wc", "sleep", "date"),
    *("test", "true", "false", "id", "uname", "mktemp", "sha256sum", "setfattr", "getfattr", "tar"),
    *("xargs", "tr", "cut", "python3"),
)
_UNUSED = ("test", "idlelib", "lib2to3", "ensurepip", "config-*", "__pycache__", "tkinter", "pydoc_data")


def rootfs(folder: Path, programs: Sequence[str] = PROGRAMS) -> Path:
    """A root file system in a new folder: a shell, its usual programs and a bare Python 3, or only these `programs`."""
    for name in ("usr/bin", "etc", "tmp", "var/tmp", "mnt", "dev", "proc", "sys", "root", "home", "opt"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / "usr" / name).mkdir(exist_ok=True)
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\n")
    found = (shutil.which(name, path="/usr/bin:/bin") for name in programs)
    libraries = {library for program in found if program for library in _install(Path(program), folder)}
    if "python3" in programs:
        modules = Path("/usr/lib") / Path("/usr/bin/python3").resolve().name
        unused = shutil.ignore_patterns(*_UNUSED)
        shutil.copytree(modules, folder / modules.relative_to("/"), ignore=unused, symlinks=True)
        for module in (modules / "lib-dynload").iterdir():
            libraries |= _needed(module)
    for library in libraries:
        _copy(library, folder)
    return folder


def sif(path: Path) -> Path:
    """The image file `path`, made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_image(), path)
    path.chmod(0o755)  # as the engine makes it
    return path


@functools.cache
def _image() -> Path:
    """The image, which takes seconds to make: once for all tests of a process."""
    folder = Path(tempfile.mkdtemp(prefix="ctrain-tiny-"))
    atexit.register(shutil.rmtree, folder)
    options = ["--fakeroot"] if os.geteuid() == 0 else []
    argv = ["apptainer", "--quiet", "build", *options, str(folder / "tiny.sif"), str(rootfs(folder / "rootfs"))]
    subprocess.run(argv, check=True, capture_output=True)
    return folder / "tiny.sif"


def _install(program: Path, folder: Path) -> set[Path]:
    """Put a program into usr/bin; returns the libraries that it needs."""
    shutil.copy(program, folder / "usr/bin" / program.name)
    return _needed(program)


def _needed(program: Path) -> set[Path]:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    return {Path(name) for name in re.findall(r"(/\S+) \(0x", said)}


def _copy(library: Path, folder: Path) -> None:
    place = folder / library.relative_to("/")
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)

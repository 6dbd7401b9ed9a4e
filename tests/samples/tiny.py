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

SHELL = (
    *("sh", "bash", "env", "cat", "cp", "mv", "ln", "rm", "rmdir", "mkdir", "chmod", "chown", "touch", "ls", "stat"),
    *("dirname", "basename", "readlink", "find", "grep", "sed", "sort", "head", "tail", "wc", "sleep", "date"),
    *("test", "true", "false", "id", "uname", "mktemp", "sha256sum", "setfattr", "getfattr", "tar"),
    *("xargs", "tr", "cut"),
)
PYTHON = (*SHELL, "python3")  # three times as large, and each image that is built on it is asked for its packages
# What ctrain's programs in images and those of tests import, and what that imports when it is called. All of Python's
# library is ten times as large, and each base that is built of this image would be, too.
_MODULES = (
    *("__future__", "argparse", "atexit", "bisect", "collections.abc", "compileall", "concurrent.futures.thread"),
    *("contextlib", "copy", "csv", "ctypes.util", "datetime", "difflib", "email.generator", "email.parser"),
    *("encodings.ascii", "encodings.idna", "encodings.latin_1", "encodings.utf_8_sig", "faulthandler", "fcntl"),
    *("getpass", "glob", "hashlib", "hmac", "importlib.machinery", "importlib.metadata", "inspect", "json.tool"),
    *("locale", "logging", "mmap", "pathlib", "pickle", "platform", "pty", "queue", "random", "resource", "runpy"),
    *("secrets", "shutil", "signal", "site", "socketserver", "stat", "statistics", "struct", "subprocess", "sysconfig"),
    *("tempfile", "termios", "textwrap", "threading", "tokenize", "traceback", "typing", "uuid", "zipfile"),
)
# hashlib does without OpenSSL, the largest of all libraries.
_FILES = f"""\
import sys
sys.modules["_hashlib"] = None
import {", ".join(_MODULES)}
print(*{{file for module in sys.modules.values() if (file := getattr(module, "__file__", None))}}, sep="\\n")
"""


def rootfs(folder: Path, programs: Sequence[str] = PYTHON) -> Path:
    """A root file system in a new folder that has these programs, and with `python3` a bare Python 3."""
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
        argv = ["/usr/bin/python3", "-I", "-S", "-c", _FILES]
        modules = list(map(Path, subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()))
        for module in modules:
            _copy(module, folder)
            for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.cpython-???.pyc"):
                _copy(compiled, folder)
        libraries |= {library for module in modules if module.suffix == ".so" for library in _needed(module)}
    for library in libraries:
        _copy(library, folder)
    return folder


def sif(path: Path, programs: tuple[str, ...] = PYTHON) -> Path:
    """The image file `path`, made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_image(programs), path)
    path.chmod(0o755)  # as the engine makes it
    return path


@functools.cache
def _image(programs: tuple[str, ...]) -> Path:
    """The image, which takes seconds to make: once for all tests of a process."""
    folder = Path(tempfile.mkdtemp(prefix="ctrain-tiny-"))
    atexit.register(shutil.rmtree, folder)
    options = ["--mksquashfs-args=-Xcompression-level 1", *(["--fakeroot"] if os.geteuid() == 0 else [])]
    argv = [
        "apptainer",
        "--quiet",
        "build",
        *options,
        str(folder / "tiny.sif"),
        str(rootfs(folder / "rootfs", programs)),
    ]
    subprocess.run(argv, check=True, capture_output=True)
    return folder / "tiny.sif"


def _install(program: Path, folder: Path) -> set[Path]:
    """Put a program into usr/bin; returns the libraries that it needs."""
    shutil.copy(program, folder / "usr/bin" / program.name)
    return _needed(program)


@functools.cache
def _needed(program: Path) -> set[Path]:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    return {Path(name) for name in re.findall(r"(/\S+) \(0x", said)}


def _copy(file: Path, folder: Path) -> None:
    place = folder / file.relative_to("/")
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, place)  # compiled modules know the times of their sources

"""Stand-ins for NVIDIA's PyTorch images, which can't be had everywhere: our own CPU base with the traps of theirs.

What the real images have and do was read in published dumps of them: docs/ngc.md. Each of three tags has the versions
that its packages report; all have the base's Python 3.11 and MPI, and `whole` ones its torch 2.13 under the other name.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

PACKAGES = "usr/local/lib/python3.11/dist-packages"
COMPAT = "usr/local/cuda/compat"
CHECKS = "var/driver-checks"  # each driver check that can write leaves a line here


@dataclass(frozen=True)
class Release:
    """What differs between tags. `standard` is for which C++ torch compiles extensions."""

    tag: str
    torch: str
    standard: int
    numpy: str
    constraints: str = ""
    files: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return f"nvidia/pytorch:{self.tag}-py3"


# In each, as old as they were seen in such images: transformers 5 wants a newer regex, 5.23 newer safetensors.
OLD = {"safetensors": "0.7.0", "regex": "2024.11.6"}
# The images have Debian's setuptools 80.9.0 and neither cffi nor psutil. What the file of 26.08 says is not known.
CONSTRAINTS = "cffi==1.16.0\nPSUTIL==6.1.1\nsetuptools==70.3.0\nregex==2024.11.6\nsafetensors==0.7.0\n"
# Images of 2020 and 2021 have this one first on PATH; that of 22.03 is not known.
_OLD_CMAKE = ("usr/local/bin/cmake", '#!/bin/sh\necho cmake version 3.14.6\ntest "$*" = --version\n')
RELEASES = {
    release.tag: release
    for release in (
        Release("22.03", "1.12.0a0+2c916ef", 14, "1.22.3", files=(_OLD_CMAKE,)),
        Release("24.12", "2.6.0a0+df5bbc0", 17, "1.26.4"),
        Release("26.08", "2.14.0a0+4fdf77b", 20, "2.4.6", CONSTRAINTS),
    )
}
# Rows, as they are read.
# fmt: off
ENV = (
    "PATH=/usr/local/mpi/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "LIBRARY_PATH=/usr/local/cuda/lib64/stubs:", "SHELL=/bin/bash", "ENV=/etc/shinit_v2", "BASH_ENV=/etc/bash.bashrc",
    "OPAL_PREFIX=/opt/hpcx/ompi", "OMPI_MCA_coll_hcoll_enable=0", "PIP_BREAK_SYSTEM_PACKAGES=1",
    "PIP_DEFAULT_TIMEOUT=100", "CUDA_VERSION=12.6.3.004", "CUDA_DRIVER_VERSION=560.35.05", "NCCL_VERSION=2.23.4",
    "TORCH_CUDA_ARCH_LIST=7.0 7.5 8.0 8.6 9.0+PTX", "_CUDA_COMPAT_PATH=/usr/local/cuda/compat", "NCCL_DEBUG=",
)
# fmt: on
LABELS = {"com.nvidia.cuda.version": "12.6.3.004", "com.nvidia.nccl.version": "2.23.4"}
# NVIDIA's index that no name server knows any more, where pip looks for files of all users and of root
INDEX = "gone.invalid"
PIP_CONF = f"[global]\nextra-index-url = https://{INDEX}/simple\n"
SHINIT = f"""\
echo "stand-in: driver check"
echo checked 2>/dev/null >>/{CHECKS}
rm /{COMPAT}/lib
export LD_LIBRARY_PATH=/{COMPAT}/lib.real:$LD_LIBRARY_PATH
"""
ENTRYPOINT = '#!/bin/bash\necho "stand-in: entrypoint"\nexec "$@"\n'


class Link(str):
    """The target of a symbolic link."""


FILES: dict[str, Union[str, Link]] = {
    "etc/bash.bashrc": '. /etc/shinit_v2\n[ -z "$PS1" ] && return\n',
    "etc/shinit_v2": SHINIT,
    **dict.fromkeys(("etc/pip.conf", "etc/xdg/pip/pip.conf", "root/.config/pip/pip.conf"), PIP_CONF),
    "opt/nvidia/nvidia_entrypoint.sh": ENTRYPOINT,
    f"{COMPAT}/lib": Link("lib.real"),
    f"{COMPAT}/lib.real/libcuda.so.1": "",
    # Open MPI works at this place only: it is on no standard path, and finds its own files by OPAL_PREFIX.
    "usr/local/mpi": Link("/opt/hpcx/ompi"),
    "opt/hpcx/ompi/lib": Link("/usr/lib"),
    **{f"opt/hpcx/ompi/bin/{name}": Link("orterun") for name in ("mpirun", "mpiexec")},
    **{f"opt/hpcx/ompi/bin/{name}": Link("opal_wrapper") for name in ("mpicc", "mpicxx", "mpic++")},
}
_MOVED = (
    "flags=r;s,^usr/bin/(orte[^/]*|opal_wrapper|ompi_info)$,opt/hpcx/ompi/bin/\\1,x",
    "flags=r;s,^usr/share/openmpi,opt/hpcx/ompi/share/openmpi,",
)
_LEFT_OUT = (
    "usr/bin/mpi*",
    "etc/bash.bashrc",
    f"{PACKAGES}/torch-*",
    f"{PACKAGES}/torch/version.py",
    "usr/share/doc",
    "usr/share/perl",
    "var/log/*",
    "var/cache/*",
)
# What only compilers, training and readers need
_LARGE = (
    *(f"{PACKAGES}/{name}*" for name in ("torch", "sympy", "numpy", "tensorboard", "grpc", "networkx", "pillow")),
    *("usr/lib/gcc", "usr/include", "usr/bin/*g++*", "usr/bin/*gcc*", "usr/bin/*lto*", "usr/bin/cmake"),
    *("usr/lib/x86_64-linux-gnu/*.a", "usr/lib/x86_64-linux-gnu/perl*", "usr/share/cmake*"),
    *("usr/bin/ctest", "usr/bin/cpack", "usr/share/locale", "usr/share/man", "usr/share/javascript"),
    *("usr/lib/x86_64-linux-gnu/*san.so*", "usr/lib/x86_64-linux-gnu/fortran", "usr/lib/python3.11/config-*"),
)


def pack(base: Path, tar: Path, *, whole: bool) -> None:
    """Our CPU base (a SIF) as a layer of NVIDIA's, `whole` or without _LARGE."""
    left_out = _LEFT_OUT if whole else (*_LEFT_OUT, *_LARGE)
    engine = ["apptainer", "--quiet", "exec", "--fakeroot", "--no-mount", "home,cwd,tmp", "--pwd", "/", str(base)]
    options = ["--sort=name", "--mtime=@315619200", "--owner=0", "--group=0", "--numeric-owner"]
    options += [f"--transform={rule}" for rule in _MOVED] + [f"--exclude={pattern}" for pattern in left_out]
    with tar.open("wb") as out:
        argv = [*engine, "tar", "-c", *options, "bin", "etc", "lib", "lib64", "opt", "root", "sbin", "usr", "var"]
        subprocess.run(argv, stdout=out, check=True, timeout=300)


def layout(packed: Path, folder: Path, release: Release, *, whole: bool) -> Path:
    """A release as a folder in OCI layout, made of what `pack` has made."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    tar = folder / "layer.tar"
    shutil.copyfile(packed, tar)
    _add(tar, {**FILES, **dict(release.files), **_torch(release, whole=whole), **_old_packages(folder)})
    if release.constraints:
        _add(tar, {"etc/pip/constraint.txt": release.constraints})
    with tar.open("rb") as opened:
        digest = _sha256(opened)
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": tar.stat().st_size}
    tar.rename(blobs / digest.partition(":")[2])
    more = (f"NVIDIA_PYTORCH_VERSION={release.tag}", f"PYTORCH_VERSION={release.torch}")
    more += ("PIP_CONSTRAINT=/etc/pip/constraint.txt",) if release.constraints else ()
    settings = {
        "Env": [*ENV, *more],
        "Labels": LABELS,
        "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"],
        "Cmd": ["/bin/bash"],
    }
    rootfs = {"type": "layers", "diff_ids": [digest]}
    image = {"architecture": "amd64", "os": "linux", "config": settings, "rootfs": rootfs}
    config = _blob(blobs, image, "application/vnd.oci.image.config.v1+json")
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]}
    index = {"schemaVersion": 2, "manifests": [_blob(blobs, manifest, kind)]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def _torch(release: Release, *, whole: bool) -> dict[str, str]:
    """What torch reports of itself, and unless `whole` a stub in place of 700 MB."""
    info = f"{PACKAGES}/torch-{release.torch}.dist-info"
    version = f"__version__ = {release.torch!r}\ncuda = hip = xpu = rocm = None\ndebug = False\ngit_version = 'none'\n"
    stub = {
        "usr/bin/cmake": "#!/bin/sh\necho cmake version 3.24.1\n",
        f"{PACKAGES}/torch/__init__.py": "from . import version\n__version__ = version.__version__\n",
        f"{PACKAGES}/torch/utils/cpp_extension.py": f"flags = ['-std=c++{release.standard}']\n",
        f"{PACKAGES}/numpy-{release.numpy}.dist-info/METADATA": _metadata("numpy", release.numpy),
    }
    return {
        f"{PACKAGES}/torch/version.py": version,
        f"{info}/METADATA": _metadata("torch", release.torch),
        **({} if whole else stub),
    }


def _metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def _old_packages(folder: Path) -> dict[str, bytes]:
    """The files of packages that are too old, installed by pip as they are in NVIDIA's images."""
    target = folder / "packages"
    words = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "--target", str(target)]
    pins = [f"{name}=={version}" for name, version in OLD.items()]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *words, *pins], check=True, capture_output=True, timeout=300
    )
    files = [path for path in target.rglob("*") if path.is_file()]
    found = {f"{PACKAGES}/{path.relative_to(target)}": path.read_bytes() for path in files}
    shutil.rmtree(target)
    return found


def _add(tar: Path, files: Mapping[str, Union[str, Link, bytes]]) -> None:
    with tarfile.open(tar, "a") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            data = content if isinstance(content, bytes) else content.encode()
            entry.mode = 0o755 if data.startswith(b"#!") else 0o644
            if isinstance(content, Link):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def _sha256(opened: io.BufferedReader) -> str:
    whole = hashlib.sha256()
    while part := opened.read(1 << 20):
        whole.update(part)
    return f"sha256:{whole.hexdigest()}"


def _blob(folder: Path, data: dict[str, Any], kind: str) -> dict[str, Any]:
    content = json.dumps(data).encode()
    digest = hashlib.sha256(content).hexdigest()
    (folder / digest).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

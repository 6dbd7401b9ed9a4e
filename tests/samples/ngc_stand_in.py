"""A stand-in for NVIDIA's PyTorch images, which can't be had everywhere: our own CPU base with the traps of theirs.

What the real images have and do was read in published dumps of them: docs/ngc.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Union

NAME = "nvidia/pytorch:24.12-py3"
TORCH = "2.6.0a0+df5bbc0"
PACKAGES = "usr/local/lib/python3.11/dist-packages"
COMPAT = "usr/local/cuda/compat"
CHECKS = "var/driver-checks"  # each driver check that can write leaves a line here
# fmt: off
ENV = (
    "PATH=/usr/local/mpi/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "LIBRARY_PATH=/usr/local/cuda/lib64/stubs:", "SHELL=/bin/bash", "ENV=/etc/shinit_v2", "BASH_ENV=/etc/bash.bashrc",
    "OPAL_PREFIX=/opt/hpcx/ompi", "OMPI_MCA_coll_hcoll_enable=0", "PIP_BREAK_SYSTEM_PACKAGES=1",
    "PIP_CONSTRAINT=/etc/pip/constraint.txt", "PIP_DEFAULT_TIMEOUT=100", "NVIDIA_PYTORCH_VERSION=24.12",
    f"PYTORCH_VERSION={TORCH}", "CUDA_VERSION=12.6.3.004", "CUDA_DRIVER_VERSION=560.35.05", "NCCL_VERSION=2.23.4",
    "TORCH_CUDA_ARCH_LIST=7.0 7.5 8.0 8.6 9.0+PTX", "_CUDA_COMPAT_PATH=/usr/local/cuda/compat", "NCCL_DEBUG=",
)
# fmt: on
LABELS = {"com.nvidia.cuda.version": "12.6.3.004", "com.nvidia.nccl.version": "2.23.4"}
# The image has Debian's setuptools 80.9.0; it has neither cffi nor psutil.
CONSTRAINTS = "cffi==1.16.0\nPSUTIL==6.1.1\nsetuptools==70.3.0\n"
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
    "etc/pip/constraint.txt": CONSTRAINTS,
    "opt/nvidia/nvidia_entrypoint.sh": ENTRYPOINT,
    f"{COMPAT}/lib": Link("lib.real"),
    f"{COMPAT}/lib.real/libcuda.so.1": "",
    # Open MPI works at this place only: it is on no standard path, and finds its own files by OPAL_PREFIX.
    "usr/local/mpi": Link("/opt/hpcx/ompi"),
    "opt/hpcx/ompi/lib": Link("/usr/lib"),
    **{f"opt/hpcx/ompi/bin/{name}": Link("orterun") for name in ("mpirun", "mpiexec")},
    **{f"opt/hpcx/ompi/bin/{name}": Link("opal_wrapper") for name in ("mpicc", "mpicxx", "mpic++")},
}
_STUB = {  # in place of 700 MB
    f"{PACKAGES}/torch/__init__.py": f"__version__ = {TORCH!r}\nclass version:\n    cuda = None\n",
    f"{PACKAGES}/torch-{TORCH}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n",
}
_MOVED = (
    "flags=r;s,^usr/bin/(orte[^/]*|opal_wrapper|ompi_info)$,opt/hpcx/ompi/bin/\\1,x",
    "flags=r;s,^usr/share/openmpi,opt/hpcx/ompi/share/openmpi,",
)
_LEFT_OUT = ("usr/bin/mpi*", "etc/bash.bashrc", "usr/share/doc", "usr/share/perl", "var/log/*", "var/cache/*")
# What only compilers and training need
_LARGE = (
    *(f"{PACKAGES}/{name}*" for name in ("torch", "sympy", "numpy", "tensorboard", "grpc", "networkx", "pillow")),
    *("usr/lib/gcc", "usr/include", "usr/bin/*g++*", "usr/bin/*gcc*", "usr/bin/*lto*", "usr/bin/cmake"),
    *("usr/lib/x86_64-linux-gnu/*.a", "usr/lib/x86_64-linux-gnu/perl*", "usr/share/cmake*"),
)


def layout(base: Path, folder: Path, *, whole: bool) -> Path:
    """The image as a folder in OCI layout, made of our CPU base (a SIF): `whole`, or with a stub in place of torch."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    tar = folder / "layer.tar"
    _pack(base, tar, _LEFT_OUT if whole else (*_LEFT_OUT, *_LARGE))
    _add(tar, FILES if whole else {**FILES, **_STUB})
    with tar.open("rb") as opened:
        digest = _sha256(opened)
    layer = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": tar.stat().st_size}
    tar.rename(blobs / digest.partition(":")[2])
    settings = {"Env": ENV, "Labels": LABELS, "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"], "Cmd": ["/bin/bash"]}
    rootfs = {"type": "layers", "diff_ids": [digest]}
    image = {"architecture": "amd64", "os": "linux", "config": settings, "rootfs": rootfs}
    config = _blob(blobs, image, "application/vnd.oci.image.config.v1+json")
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]}
    index = {"schemaVersion": 2, "manifests": [_blob(blobs, manifest, kind)]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def _pack(base: Path, tar: Path, left_out: tuple[str, ...]) -> None:
    engine = ["apptainer", "--quiet", "exec", "--fakeroot", "--no-mount", "home,cwd,tmp", "--pwd", "/", str(base)]
    options = ["--sort=name", "--mtime=@315619200", "--owner=0", "--group=0", "--numeric-owner"]
    options += [f"--transform={rule}" for rule in _MOVED] + [f"--exclude={pattern}" for pattern in left_out]
    with tar.open("wb") as out:
        argv = [*engine, "tar", "-c", *options, "bin", "etc", "lib", "lib64", "opt", "root", "sbin", "usr", "var"]
        subprocess.run(argv, stdout=out, check=True, timeout=300)


def _add(tar: Path, files: dict[str, Union[str, Link]]) -> None:
    with tarfile.open(tar, "a") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode = 0o755 if content.startswith("#!") else 0o644
            if isinstance(content, Link):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content.encode()))


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

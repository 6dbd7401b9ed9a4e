"""An image with torch and MPICH that ctrain did not build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ctrain_runtime.store import sif

# Debian with torch, as debootstrap and pip make it for definitions/pytorch-cpu; packed anew by the engine alone. MPICH
# takes the place of Debian's Open MPI, which mpi4py would choose.
DEFINITION = """\
Bootstrap: localimage
From: debian.sqsh

%files
    wheels /opt/wheels

%post
    packages=/usr/local/lib/python3.11/dist-packages
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --no-index --no-deps /opt/wheels/*.whl
    cd /.singularity.d && rm -rf labels.json runscript.help test
    rm -rf /opt/wheels /usr/lib/gcc /usr/include /usr/share/* "$packages"/grpc* "$packages"/torchvision*
    rm -rf /usr/lib/*/openmpi /usr/lib/*/libmpi* /usr/bin/mpi* /usr/bin/orte*
    ldconfig

%environment
    export BUILT_BY=somebody
"""
WHEELS = ("mpich==5.0.2", "mpi4py==4.1.2")
PYTHON = "3.11"  # Debian 12's


def build(published: Path, path: Path) -> None:
    """Build the image as `path`, from the published `pytorch-cpu`, in its folder."""
    work = path.parent
    # Not by `apptainer sif dump`: that writes what looks like a line of a log, in the midst of data, to stderr.
    (work / "debian.sqsh").write_bytes(sif.entry_bytes(published, sif.partitions(published)[0]))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    words = [*pip, "--python-version", PYTHON, "--dest", str(work / "wheels"), *WHEELS]
    subprocess.run(words, check=True)
    (work / "foreign.def").write_text(DEFINITION)
    quick = ["--mksquashfs-args", "-comp lz4"]
    argv = ["apptainer", "build", "--fakeroot", *quick, str(path), "foreign.def"]
    subprocess.run(argv, cwd=work, check=True, capture_output=True)

"""The versions of an image's software. What the image lacks, or what does not start, is left out.

`arch` lists the compute capabilities of GPUs for which the framework has machine code, as in "7.0 8.0".
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
PACKAGES = ("torch", "torchvision", "horovod", "deepspeed", "mpi4py", "numpy")


def collect() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package) or "unknown"  # what is left of a removed package tells none
    for framework, facts in (("torch", torch_facts), ("tensorflow", tensorflow_facts)):
        if find_spec(framework):
            with suppress(Exception):  # whatever a broken one raises: the tests of the image will tell
                versions.update(facts())
    mpirun = shutil.which("mpirun")
    if mpirun:
        printed = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
        loaded = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True).stdout
        versions["mpi"] = mpi_of_programs(mpi_name(printed), library_name(loaded))
        if hpcx := hpcx_version(os.environ, os.path.realpath(mpirun)):
            versions["hpcx"] = hpcx
    return versions


def mpi_name(printed: str) -> str:
    """Name and version in what mpirun prints: Open MPI's, Hydra's (MPICH and its kin); of others, the first line."""
    named = re.match(r"\S+ \(([^)]+)\) (\S+)|(HYDRA) build details:\s+Version:\s+(\S+)", printed)
    return " ".join(filter(None, named.groups())) if named else printed.partition("\n")[0]


def library_name(printed: str) -> str:
    """Name and version in what an MPI's library states of itself; "" for others than Open MPI and MPICH."""
    named = re.match(r"(Open MPI) v([^\s,]+)|(MPICH) Version:\s+(\S+)", printed)
    return " ".join(filter(None, named.groups())) if named else ""


def mpi_of_programs(mpirun: str, library: str) -> str:
    """The MPI that programs load, where that is known and mpirun is another's: `pip install mpich` puts its mpirun
    before that of Open MPI, for which the image's mpi4py and Horovod were compiled."""
    is_other = library.startswith("Open MPI") != mpirun.startswith("Open MPI")
    return library if library and is_other else mpirun


def hpcx_version(environ: Mapping[str, str], mpirun: str) -> str:
    """The version of NVIDIA's HPC-X if `mpirun`, a real path, is of it: NVIDIA's images name it in a variable, their
    newer ones install it in /usr/local/mpi. "" for another MPI."""
    version = environ.get("HPCX_VERSION", "")
    if "/hpcx" in mpirun or (version and mpirun.startswith("/usr/local/mpi/")):
        return version or "unknown"
    return ""


def torch_facts() -> dict[str, str]:
    import torch

    # torch's own version tells the build (2.13.0+cpu), which the package's need not.
    facts = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        facts["cuda"] = torch.version.cuda
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        # What torch.cuda.get_arch_list() asks where there is a GPU
        facts["arch"] = capabilities(getattr(torch._C, "_cuda_getArchFlags", str)() or "")
    if getattr(torch.version, "hip", None):
        facts["rocm"] = torch.version.hip
    if getattr(torch.version, "xpu", None):
        facts["xpu"] = torch.version.xpu
    return facts


def tensorflow_facts() -> dict[str, str]:
    import tensorflow

    build = tensorflow.sysconfig.get_build_info()
    facts = {"tensorflow": str(tensorflow.__version__)}
    if build.get("cuda_version"):
        facts["cuda"] = str(build["cuda_version"])
        facts["arch"] = capabilities(" ".join(build.get("cuda_compute_capabilities", ())))
    return facts


def capabilities(compiled: str) -> str:
    """As in "7.0 12.0" for "sm_70 sm_120 compute_120"."""
    return " ".join(".".join(parts) for parts in re.findall(r"sm_(\d+)(\d)", compiled))

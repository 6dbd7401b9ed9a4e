"""Prints the versions of an image's software as one JSON object. What the image lacks is left out."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "torchvision", "horovod", "deepspeed", "mpi4py", "numpy")


def main() -> None:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if "torch" in found:
        found.update(torch_facts())
    mpirun = shutil.which("mpirun")
    if mpirun:
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True).stdout
        named = re.search(r"\(([^)]+)\) (\S+)", said)  # mpirun (Open MPI) 4.1.4
        found["mpi"] = " ".join(named.groups()) if named else said.partition("\n")[0]
    print(json.dumps(found))


def torch_facts() -> dict[str, str]:
    import torch  # type: ignore[import-not-found,unused-ignore]  # only in the image

    # torch's own version tells the build (2.13.0+cpu), which the package's need not.
    facts = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        facts["cuda"] = torch.version.cuda
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts


if __name__ == "__main__":
    main()

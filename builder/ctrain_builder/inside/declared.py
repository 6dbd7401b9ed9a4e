"""Checks that an image is as images.yaml says of its tag: declared.py JSON, a Variant without its arguments."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import versions


def main(declared: dict[str, str]) -> None:
    wrong = list(differences(declared))
    if wrong:
        raise SystemExit("not as images.yaml says:\n" + "\n".join(wrong))


def differences(declared: dict[str, str]) -> Iterator[str]:
    python, mpi, constraints = declared["python"], declared["mpi"], declared["constraints"]
    if python and not f"{platform.python_version()}.".startswith(f"{python}."):
        yield f"python is {platform.python_version()}, not {python}"
    mpirun = os.path.realpath(shutil.which("mpirun") or "/nowhere")
    if mpi and not mpirun.startswith(os.path.realpath(mpi) + "/"):
        yield f"mpirun is {mpirun}, not in {mpi}"
    if constraints and not Path(constraints).is_file():
        yield f"there is no file {constraints}"
    wanted = set(declared["sm"].replace("+PTX", "").split())
    compiled = versions.collect().get("arch", "") if wanted else ""
    missing = wanted - set(compiled.split())
    if missing:
        yield f"not compiled for GPUs of sm {' '.join(sorted(missing))}, only for {compiled or 'CPUs'}"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

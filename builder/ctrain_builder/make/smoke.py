"""Tests inside a finished image, before anybody may publish it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.make import metadata
from ctrain_builder.make.container import Container, Failed
from ctrain_builder.plan import BuildPlan
from ctrain_runtime.store import TestResult

_INSIDE = Path(__file__).parent / "inside"
# As root, with more processes than cores, without a home: no reason for a test of two processes to fail.
_TWO = (
    *("env", "HOME=/tmp", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
    *("OMPI_MCA_rmaps_base_oversubscribe=1", "OMP_NUM_THREADS=1"),
)
_MODULES = {"torch": "torch", "torchvision": "torchvision", "horovod": "horovod.torch", "deepspeed": "deepspeed"}


@dataclass(frozen=True)
class Check:
    """A command inside the image that ends with 0 if all is well."""

    name: str
    argv: tuple[str, ...]


def checks(plan: BuildPlan, base: Mapping[str, str]) -> Iterator[Check]:
    """The tests for an image, given the versions of the software in its base."""
    if len(plan.layers) > 1:
        marker = f'test "$(cat /{metadata.FOLDER}/{metadata.MARKER})" = "$0"'
        yield Check("layers mounted", ("/bin/sh", "-c", marker, plan.layers[-1].key))
    names = {"torch", "torchvision"} & base.keys() | {"horovod", "deepspeed"} & {layer.name for layer in plan.layers}
    if names:
        yield Check("imports", ("python3", "-c", f"import {', '.join(_MODULES[name] for name in sorted(names))}"))
    if "torch" in base:
        same = f"import torch; assert torch.__version__ == {base['torch']!r}, torch.__version__"
        yield Check("torch unchanged", ("python3", "-c", same))
    if "horovod" in names:
        yield Check("horovodrun -cb", ("python3", "/mnt/horovod_build.py"))
        yield Check("all-reduce by MPI", (*_TWO, "mpirun", "-np", "2", "python3", "/mnt/all_reduce.py"))
        yield Check("all-reduce by Gloo", (*_TWO, "horovodrun", "-np", "2", "--gloo", "python3", "/mnt/all_reduce.py"))


def run(container: Container, image: Path, check: Check, log: Path) -> TestResult:
    """Run one test the way a job runs: not as the root of a build."""
    scratch = container.work / "test-tmp"
    scratch.mkdir(exist_ok=True)
    argv = container.argv("exec", image, binds=[f"{_INSIDE}:/mnt:ro", f"{scratch}:/tmp"])
    started = time.monotonic()
    try:
        container.run([*argv, *check.argv], log)
        passed = True
    except Failed:
        passed = False
    return TestResult(check.name, passed, f"{time.monotonic() - started:.1f}")

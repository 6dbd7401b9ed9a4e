"""Tests inside a finished image, before anybody may publish it. When one fails, it tells which layer is to blame."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrain_builder.definitions.definition import is_independent
from ctrain_builder.layers import metadata
from ctrain_builder.layers.container import CommandFailed, Container, LowerLayers
from ctrain_builder.plan.build_plan import BuildPlan
from ctrain_builder.testing.reuse import copy_programs
from ctrain_runtime.errors import BuildError, CtrainError
from ctrain_runtime.store.manifest import TestResult

UNCHANGED = "unchanged.py"
# As root, with more processes than cores, without a home or a GPU: no reason for a test to fail.
_ENV = (
    *("env", "HOME=/tmp", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
    *("OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"),
    "OMP_NUM_THREADS=1",
)
_PYTHON = (*_ENV, "python3")
_FRAMEWORKS = {"PyTorch": "torch", "TensorFlow": "tensorflow"}  # Horovod's names for them


@dataclass(frozen=True)
class ImageTest:
    """A command inside the image that ends with 0 if all is well.

    `since`: the number of the first layer with which it can pass. `all_layers`: whether it may depend on the layers
    above that one as well. `script`: a file for it, at /mnt/script. `skip`: why it can't be run here.
    `reusable`: whether its result holds for another image that has the same layers.
    """

    name: str
    argv: tuple[str, ...]
    since: int = 0
    script: str = ""
    gpu: bool = False
    skip: str = ""
    all_layers: bool = False
    reusable: bool = True


def base_facts(container: Container, base: Path) -> dict[str, str]:
    """What the upper layers of an image must leave as it is in the base: versions, and digests of files."""
    return run_probe(container, base, UNCHANGED)


def run_probe(container: Container, image: Path, program: str, overlays: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object that a program of inside/ prints in an image, with layers over it; {} if it has no Python. Raises
    BuildError."""
    script = 'if command -v python3 > /dev/null; then exec python3 "$0"; else echo {}; fi'
    try:
        scratch = Path(tempfile.mkdtemp(dir=container.work))
        copy_programs(scratch / "mnt")
        (scratch / "tmp").mkdir()  # TensorFlow can't be imported without one
        binds = [f"{scratch / 'mnt'}:/mnt:ro", f"{scratch / 'tmp'}:/tmp"]
        argv = container.argv("exec", image, overlays=overlays, binds=binds)
        text = container.output([*argv, "/bin/sh", "-c", script, f"/mnt/{program}"], timeout=1800)  # reads much
        facts = json.loads(text.strip().splitlines()[-1])
        if not isinstance(facts, dict):
            raise ValueError("its answer is not an object")
    except (CtrainError, ValueError, IndexError, RecursionError) as error:
        raise BuildError(f"image {image} can't be examined: {error}", "Does its python3 work?") from error
    return facts


def checks(
    plan: BuildPlan, base: Mapping[str, str], gpus: int, inherited: Mapping[str, str] = {}
) -> Iterator[ImageTest]:
    """The tests for an image, given the facts of its base, the number of GPUs of this machine, and the %test of layers
    that come from a parent image, by name."""
    place = {layer.name: number for number, layer in enumerate(plan.layers)}
    top = len(plan.layers) - 1
    if top:
        marker = f'test "$(cat /{metadata.DIRECTORY}/{metadata.MARKER})" = "$0"'
        yield ImageTest("layers mounted", ("/bin/sh", "-c", marker, plan.layers[top].key), top, reusable=False)
    declared = plan.spec.variant.declared
    if any(declared.values()):
        yield ImageTest("as declared", (*_PYTHON, "/mnt/declared.py", json.dumps(declared)))
    own = [name for name in ("tensorflow", "torch", "torchvision") if name in base]
    if own:
        yield ImageTest("imports", (*_PYTHON, "-c", f"import {', '.join(own)}"))
    if top and own:
        yield ImageTest(f"{own[0]} unchanged", (*_PYTHON, "/mnt/unchanged.py", json.dumps(base)), 1)
    if plan.spec.horovod:
        yield from _horovod(plan.spec.horovod, place.get("horovod", 0))
    if "deepspeed" in place:
        step = ("DS_ACCELERATOR=cpu", "python3", "/mnt/zero_step.py")
        yield ImageTest("DeepSpeed step", (*_ENV, *step), place["deepspeed"])
    yield from definition_checks(plan, inherited)
    if "cuda" in base:
        yield from _on_gpus(plan, base, gpus, place)


def definition_checks(plan: BuildPlan, inherited: Mapping[str, str] = {}) -> Iterator[ImageTest]:
    """The %test of each definition; `since` is the number of its layer."""
    for number, layer in enumerate(plan.layers):
        script = inherited.get(layer.name, "")
        if layer.definition.body("test").strip():
            script = metadata.script(layer.public.sections["test"])
        if script:
            everything = not is_independent(script)
            yield ImageTest(f"%test of {layer.name}", (*_ENV, "/mnt/script"), number, script, all_layers=everything)


def read_script(container: Container, layers: LowerLayers) -> str:
    """The %test that an image of these layers has: that of the topmost definition with one; "" without any."""
    argv = container.argv("exec", layers.base, overlays=layers.overlays)
    return container.output([*argv, "/bin/sh", "-c", f"cat /{metadata.DIRECTORY}/test 2>/dev/null || true"])


def _horovod(features: Sequence[str], since: int) -> Iterator[ImageTest]:
    reduces = "MPI" in features or "Gloo" in features  # which imports the first module
    for module in _modules(features)[int(reduces) :]:
        yield ImageTest(f"import horovod.{module}", (*_PYTHON, "-c", f"import horovod.{module}"), since)
    yield ImageTest("horovodrun -cb", (*_PYTHON, "/mnt/horovod_build.py", *features), since)
    for module in _modules(features)[:1]:
        program = ("python3", "/mnt/all_reduce.py", module, "2")
        if "MPI" in features:
            yield ImageTest("all-reduce by MPI", (*_ENV, "mpirun", "-np", "2", *program), since)
        if "Gloo" in features:
            yield ImageTest("all-reduce by Gloo", (*_ENV, "horovodrun", "-np", "2", "--gloo", *program), since)


def _modules(features: Sequence[str]) -> list[str]:
    return [_FRAMEWORKS[name] for name in features if name in _FRAMEWORKS]


def _on_gpus(plan: BuildPlan, base: Mapping[str, str], gpus: int, place: Mapping[str, int]) -> Iterator[ImageTest]:
    skip = "" if gpus else "the building machine has no GPU"
    size = str(min(2, gpus) or 2)
    if "torch" in base:
        yield ImageTest("GPU", (*_PYTHON, "/mnt/gpu.py", size), gpu=True, skip=skip, reusable=False)
    for module in _modules(plan.spec.horovod)[:1] if "NCCL" in plan.spec.horovod else ():
        argv = (*_ENV, "mpirun", "-np", size, "python3", "/mnt/all_reduce.py", module, size, "gpu")
        since = place.get("horovod", 0)
        yield ImageTest("all-reduce by NCCL", argv, since, gpu=True, skip=skip, reusable=False)


def run(container: Container, image: Path, check: ImageTest, log: Path, overlays: Sequence[str] = ()) -> TestResult:
    """Run one test the way a job runs: not as the root of a build. Its /tmp is new and empty."""
    if check.skip:
        return TestResult(check.name, False, "0.0", check.skip)
    directory = Path(tempfile.mkdtemp(prefix="test-", dir=container.work))
    mnt_dir, scratch = directory / "mnt", directory / "tmp"
    copy_programs(mnt_dir)
    scratch.mkdir()
    (mnt_dir / "script").write_text(check.script, encoding="utf-8")
    (mnt_dir / "script").chmod(0o755)
    binds = [f"{mnt_dir}:/mnt:ro", f"{scratch}:/tmp", f"{scratch}:/var/tmp"]
    argv = container.argv("exec", image, overlays=overlays, binds=binds, gpu=check.gpu)
    started = time.monotonic()
    try:
        container.run([*argv, *check.argv], log)
        passed = True
    except CommandFailed:
        passed = False
    return TestResult(check.name, passed, f"{time.monotonic() - started:.1f}")


def first_failing_layer(
    container: Container, plan: BuildPlan, files: Sequence[Path], check: ImageTest, log: Path
) -> str:
    """The layer since which a failed test fails, found by running it on ever fewer of the layers `files`.

    "" when it passes on all of them: then it is not a layer that is to blame.
    """
    culprit = ""
    for count in range(len(files), check.since, -1):
        below = LowerLayers(files[0], tuple(files[1:count]))
        if run(container, below.base, check, log, below.overlays).passed:
            break
        culprit = plan.layers[count - 1].name
    return culprit

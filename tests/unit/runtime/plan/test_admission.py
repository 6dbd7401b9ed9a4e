from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest

from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.plan.admission import NodeFacts, compiled_models, native_driver, nearest, nodes_of, notes, refusal
from ctrain_runtime.store.manifest import CPU_LABEL, Requires
from samples.plans import a_manifest

# TORCH_CUDA_ARCH_LIST of NVIDIA's tags 24.12 and 25.04.
WITH_VOLTA, WITHOUT_VOLTA = ("7.0", "7.5", "8.0", "8.6", "9.0+PTX"), ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0+PTX")
LTS = ("470.57", "535.86")


def nodes(gpu: str = "a100", driver: str = "", arch: str = "x86_64") -> NodeFacts:
    return NodeFacts("partition gpu", arch, (gpu,) if gpu else (), driver)


def of_cuda(version: str, **changes: Any) -> Any:
    return a_manifest(software={"torch": "2.6.0", "cuda": version}, **changes)


def foreign(**software: str) -> Any:
    facts = {name.replace("_", "-"): value for name, value in software.items()}
    return a_manifest(tag="", stack="", layers=(), software={"cuda": "12.6", **facts})


VOLTA = a_manifest(requires=Requires(arch=WITH_VOLTA))
NO_VOLTA = a_manifest(requires=Requires(arch=WITHOUT_VOLTA))
ROCM = a_manifest(software={"torch": "2.9.1", "rocm": "6.4.2"})
BOTH = a_manifest(software={"torch": "2.9.1", "rocm": "6.4.2", "cuda": "12.6"})
HASWELL = a_manifest(labels={CPU_LABEL: "haswell"})
V3 = frozenset(("abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))  # of the flags of a Haswell
UNLISTED = "whether it runs by forward compatibility is unknown, no list names that driver"
OLD = "CUDA 12.6 needs driver 525 or newer, partition gpu has"


@pytest.mark.parametrize(
    ("image", "where", "reason"),
    [
        # CPU architecture
        (a_manifest(), nodes(arch="aarch64"), "partition gpu is aarch64, the image is for amd64"),
        (a_manifest(arch="arm64"), nodes(arch="aarch64"), ""),
        (a_manifest(arch=""), nodes(arch="aarch64"), ""),  # a sandbox
        (a_manifest(), nodes(arch=""), ""),
        # CPU instructions
        (HASWELL, replace(nodes(), instructions=V3 | {"sse2"}), ""),
        (
            HASWELL,
            replace(nodes(), instructions=V3 - {"fma", "avx2"}),
            "the CPU of partition gpu lacks avx2 fma, the image is compiled for haswell",
        ),
        (HASWELL, nodes(), ""),  # the CPU is not known
        (a_manifest(), replace(nodes(), instructions=frozenset(("sse2",))), ""),
        (a_manifest(labels={CPU_LABEL: "znver9"}), replace(nodes(), instructions=frozenset(("sse2",))), ""),
        # Whose GPUs the partition has, where its type of GPUs says so
        (
            VOLTA,
            replace(nodes("mi250x"), maker="amd"),
            "the GPUs of partition gpu (mi250x) are AMD's, the image is for N",
        ),
        (
            VOLTA,
            replace(nodes("max1550"), maker="intel"),
            "the GPUs of partition gpu (max1550) are Intel's, the image is",
        ),
        (
            ROCM,
            replace(nodes("a100"), maker="nvidia"),
            "the GPUs of partition gpu (a100) are NVIDIA's, the image is for A",
        ),
        (ROCM, replace(nodes("mi250x"), maker="amd"), ""),
        (ROCM, nodes("gpu"), ""),  # of unknown GPUs
        (BOTH, replace(nodes("mi250x"), maker="amd"), ""),
        (BOTH, replace(nodes("a100"), maker="nvidia"), ""),
        # GPU generation, in the spellings of schedulers and drivers
        (VOLTA, nodes("v100"), ""),
        (VOLTA, nodes("Tesla V100S-PCIE-32GB"), ""),
        (NO_VOLTA, nodes("cas_v100nv_8"), "GPU V100 (compute capability 7.0) is older than the image's GPU code (7.5"),
        (NO_VOLTA, nodes("Tesla V100-SXM2-32GB"), "GPU V100 "),
        (VOLTA, nodes("p100"), "GPU P100 (compute capability 6.0) is older"),
        (NO_VOLTA, nodes("t4"), ""),
        (NO_VOLTA, nodes("NVIDIA A100-SXM4-80GB"), ""),
        (NO_VOLTA, nodes("h200"), ""),
        (VOLTA, nodes("b200"), ""),  # newer: it may compile the PTX
        (VOLTA, nodes("mi250"), ""),  # not in the table
        (NO_VOLTA, nodes("gpu"), ""),
        (NO_VOLTA, nodes(""), ""),  # the run uses no GPU
        (a_manifest(), nodes("k40"), ""),  # the image's GPU code is not known
        (a_manifest(software={"torch": "2.6.0"}, requires=Requires(arch=WITHOUT_VOLTA)), nodes("v100"), ""),  # no CUDA
        # The driver: native from a branch per major version of CUDA on
        (of_cuda("12.6"), nodes(driver="525.60.13"), ""),
        (of_cuda("12.6"), nodes(driver="535"), ""),
        (of_cuda("13.0.2"), nodes(driver="580.65.06"), ""),
        (of_cuda("11.8"), nodes(driver="450.80.02"), ""),
        (of_cuda("12.6"), nodes(driver=""), ""),
        (of_cuda("12.6"), nodes(driver="unknown"), ""),
        (of_cuda("14.0"), nodes(driver="470.57.02"), ""),  # a major version that is not known
        (of_cuda("12.6"), nodes(driver="470.57.02"), ""),  # ctrain's own: requirements not known
        # ... before that by forward compatibility: on data-centre GPUs, with libraries in the image
        (of_cuda("12.6", requires=Requires(older_drivers=LTS)), nodes(driver="470.57.02"), ""),
        (of_cuda("12.6", requires=Requires(older_drivers=LTS)), nodes(driver="515.65"), ""),
        (
            of_cuda("12.6", requires=Requires(older_drivers=LTS)),
            nodes(driver="450.80"),
            f"{OLD} 450.80; by forward compatibility also 470.57, 535.86",
        ),
        (of_cuda("12.6"), nodes("NVIDIA GeForce RTX 3090", "470.57"), f"{OLD} 470.57, and GPU NVIDIA GeForce RTX 3090"),
        (of_cuda("12.6"), nodes("rtx2080ti", "470.57"), f"{OLD} 470.57, and GPU rtx2080ti has no forward compat"),
        (of_cuda("12.6"), nodes("rtx2080ti", "535.54"), ""),
        (foreign(python="3.12"), nodes(driver="470.57"), f"{OLD} 470.57, and the image has no libraries for forward"),
        (foreign(cuda_compat="560.35.05"), nodes(driver="470.57"), ""),
        (foreign(python="3.12"), nodes(driver="535.54"), ""),
        # The C library, for the driver's libraries that --nv brings
        (foreign(musl="yes"), nodes(), "its C library is musl"),
        (foreign(glibc="2.17"), nodes(), ""),
        (a_manifest(software={"musl": "yes"}), nodes(), ""),
    ],
)
def test_what_is_refused(image: Any, where: NodeFacts, reason: str) -> None:
    found = refusal(image, where)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("driver", "older", "outcome"),
    [
        ("470.57.02", LTS, "it runs by forward compatibility, on data-centre GPUs (listed: 470.57)"),
        ("470.239.06", ("470",), "it runs by forward compatibility, on data-centre GPUs (listed: 470)"),
        ("515.65", LTS, UNLISTED),
        ("470.42.01", ("450.51", "470.57"), UNLISTED),
        ("470.57", (), UNLISTED),
    ],
)  # fmt: skip  # rows, as they are read
def test_forward_compatibility_is_claimed_of_listed_drivers_only(
    driver: str, older: tuple[str, ...], outcome: str
) -> None:
    image = of_cuda("12.6", requires=Requires(older_drivers=older))
    assert refusal(image, nodes(driver=driver)) == ""
    assert notes(image, nodes(driver=driver)) == (f"CUDA 12.6 needs driver 525, partition gpu has {driver}: {outcome}",)


def test_forward_compatibility_is_noted_only_where_it_is_needed() -> None:
    for where in (nodes(driver="535"), nodes(), nodes("", driver="470.57")):
        assert notes(of_cuda("12.6"), where) == ()
    assert notes(a_manifest(software={}), nodes(driver="470.57")) == ()


def test_what_of_a_foreign_image_is_unknown_is_named() -> None:
    image = foreign(python="3.12")
    assert notes(image, nodes()) == ("not compared with partition gpu: the driver, the image's GPU code",)
    assert notes(replace(image, requires=VOLTA.requires), nodes(driver="535")) == ()
    assert notes(image, nodes("")) == notes(a_manifest(), nodes()) == ()


@pytest.mark.parametrize(
    ("software", "idle"),
    [
        ({"torch": "2.13.0+cpu"}, True),
        ({"torch": "2.13.0"}, True),
        ({"tensorflow": "2.15.1"}, True),
        ({"torch": "2.9.1", "rocm": "6.4.2"}, False),
        ({"torch": "2.10.0+xpu"}, False),
        ({"python": "3.12"}, False),  # JAX, or what was not looked at
        ({}, False),
    ],
)
def test_gpus_that_an_image_leaves_idle(software: dict[str, str], idle: bool) -> None:
    """A node's eight were reserved for an image without CUDA, and nothing was said."""
    image = a_manifest(software=software)
    line = "the image computes on CPUs alone: the GPUs of partition gpu stay idle (--gpus-per-node 0 asks for none)"
    assert (line in notes(image, nodes())) is idle
    assert notes(image, nodes("")) == ()


def test_the_drivers_of_each_version_of_cuda() -> None:
    assert [native_driver(of_cuda(version)) for version in ("11.8", "12.0", "13.1", "x", "")] == [450, 525, 580, 0, 0]


def test_the_gpus_that_it_compiled_models_for() -> None:
    names = ("v100", "a100", "NVIDIA A100-SXM4-80GB", "a30", "a40", "l4", "h100", "mi250")
    assert compiled_models(NO_VOLTA, names) == ("A100", "A30", "A40", "L4", "H100")
    assert compiled_models(VOLTA, ("v100", "p100", "b200")) == ("V100",)
    assert compiled_models(a_manifest(), names) == ()


@pytest.mark.parametrize(
    ("published", "version"),
    [
        ([VOLTA], "24.12-hd-r3"),
        ([a_manifest(requires=VOLTA.requires, release=2), VOLTA, NO_VOLTA], "24.12-hd-r3"),
        ([VOLTA, a_manifest(name="other", release=9)], "24.12-hd-r3"),
        ([NO_VOLTA, a_manifest(name="other", release=9)], "24.12-hd-r9"),
        ([a_manifest(requires=VOLTA.requires, flat=True)], None),
        ([a_manifest(name="pytorch-cpu", software={})], None),
        ([NO_VOLTA, a_manifest(arch="arm64")], None),
        ([], None),
    ],
)
def test_the_nearest_image_that_fits(published: list[Any], version: Optional[str]) -> None:
    found = nearest(NO_VOLTA, published, nodes("v100"))
    assert (found.version if found else None) == version


def test_the_nearest_image_for_gpus_of_another_maker_is_one_for_gpus() -> None:
    """For an image of AMD's one for CPUs was named, which would train on CPUs beside NVIDIA's GPUs."""
    cpus = a_manifest(name="pytorch-cpu", software={"torch": "2.13.0"})
    on_nvidia = replace(nodes("v100"), maker="nvidia")
    on_amd = replace(nodes("mi250x"), maker="amd")
    assert nearest(ROCM, [VOLTA, cpus], on_nvidia) == VOLTA
    assert nearest(VOLTA, [ROCM, cpus], on_amd) == ROCM
    assert nearest(ROCM, [cpus], on_nvidia) is None


@pytest.mark.parametrize(
    ("gpu_type", "name", "use_gpus", "maker"),
    [
        ("mi250x", "batch", True, "amd"),
        ("mi250x", "batch", False, ""),
        ("max1550", "debug", True, "intel"),
        ("a100", "amd_a100nv_8", True, "nvidia"),
        ("", "amd_a100nv_8", True, ""),  # AMD's are the CPUs
        ("gpu", "any", True, ""),  # a type that says nothing
    ],
)
def test_whose_gpus_a_partition_has_is_known_by_their_type(
    gpu_type: str, name: str, use_gpus: bool, maker: str
) -> None:
    part = Partition(name, True, nodes=1, cpus=8, gpus=4, gpu_type=gpu_type)
    assert nodes_of(part, use_gpus=use_gpus).maker == maker

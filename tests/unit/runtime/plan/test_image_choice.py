from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ctrain_runtime.cluster.model import Cluster, Machine
from ctrain_runtime.errors import EngineError, UsageError
from ctrain_runtime.gpus import Maker
from ctrain_runtime.store.manifest import Layer
from samples.layers import a_layer
from samples.plans import GPU_PARTITION, LOCAL, a_plan, an_image
from samples.plans import some_facts as facts

FOREIGN = an_image(tag="", layers=(), software={"python": "3.12"})  # with JAX, of which ctrain knows nothing


def test_the_image_of_a_plan() -> None:
    image = a_plan().image
    assert (image.version, image.channel, image.marker, image.cuda) == ("24.12-hd-r3", "prod", "k1", True)
    base = a_plan(image=an_image(layers=(Layer("pytorch-cpu", "k0", 3),), software={"torch": "2.6.0"})).image
    assert (base.marker, base.cuda) == ("", False)


@pytest.mark.parametrize(
    ("software", "gpus", "cuda"),
    [
        ({}, 2, True),  # it could not be examined
        ({"python": "3.12"}, 2, True),  # JAX ...
        ({"torch": "2.6.0"}, 2, True),  # it could not be imported
        ({"torch": "2.6.0", "rocm": "6.2"}, 2, False),
        ({"torch": "2.8.0+xpu"}, 2, False),
        ({"torch": "2.10.0a0+git449b176", "xpu": "20250202"}, 2, False),  # as of Intel's frameworks
        ({"python": "3.12"}, 0, False),
        ({"torch": "2.13.0+cpu"}, 2, False),
        ({"torch": "2.6.0", "cuda": "12.6"}, 0, True),
    ],
)
def test_a_foreign_image_gets_the_gpus_unless_it_is_known_to_have_no_cuda(
    software: dict[str, str], gpus: int, cuda: bool
) -> None:
    image = an_image(tag="", layers=(), software=software)
    assert a_plan(image=image, gpus_per_node=gpus).image.cuda is cuda


@pytest.mark.parametrize(
    ("gpu_type", "cuda", "rocm"),
    [
        ("", True, False),
        ("a100", True, False),
        ("gh200_120gb", True, False),
        ("mi250x", False, True),
        ("amd_instinct_mi300a", False, True),
        ("max1550", False, False),  # Intel's need nothing of the node
        ("Intel_Data_Center_GPU_Max_1550", False, False),
        ("pvc", False, False),
    ],
)
def test_a_foreign_image_for_unknown_gpus_gets_those_of_the_partition(gpu_type: str, cuda: bool, rocm: bool) -> None:
    cluster = Cluster((replace(GPU_PARTITION, gpu_type=gpu_type),), ("pmix",))
    image = a_plan(image=FOREIGN, facts=facts(cluster=cluster), gpus_per_node=2).image
    assert (image.cuda, image.rocm) == (cuda, rocm)
    known = an_image(tag="", layers=(), software={"torch": "2.6.0", "cuda": "12.6"})
    assert a_plan(image=known, facts=facts(cluster=cluster), gpus_per_node=2).image.cuda


@pytest.mark.parametrize(
    ("maker", "cuda", "rocm"), [("nvidia", True, False), ("amd", False, True), ("intel", False, False)]
)
def test_a_foreign_image_for_unknown_gpus_gets_those_of_this_machine(maker: Maker, cuda: bool, rocm: bool) -> None:
    here = Cluster(machine=Machine(gpus=2, cores=2))
    local = {**LOCAL, "facts": replace(LOCAL["facts"], gpu_maker=maker, cluster=here)}
    image = a_plan(image=FOREIGN, gpus_per_node=2, **local).image
    assert (image.cuda, image.rocm) == (cuda, rocm)


def test_user_layers_are_planned_in_their_order() -> None:
    first, second = a_layer("/a.sqsh", "a" * 64, einops="0.8.2"), a_layer("/b.sqsh", "b" * 64, einops="0.8.2")
    planned = a_plan(layers=(first, second)).image.layers
    assert [(layer.path, layer.key) for layer in planned] == [("/a.sqsh", "a" * 64), ("/b.sqsh", "b" * 64)]
    assert (planned[0].digest, planned[0].packages) == ("sha256:1a7e", {"einops": "0.8.2"})


@pytest.mark.parametrize(("release", "name"), [(4, "pytorch:24.12-hd-r4"), (0, "/apps/ctrain/.*-r0.sif")])
def test_a_layer_of_another_image_is_refused(release: int, name: str) -> None:
    """Both are named, and the command that builds it anew; an image that is not published goes by its path."""
    with pytest.raises(UsageError) as caught:
        a_plan(layers=(a_layer(),), image=an_image(digest="sha256:beef", release=release))
    assert caught.value.message == (
        "layer /home/kim/my.sqsh was built on pytorch 24.12-hd-r3 (sha256:9f2c41d0a7e3),"
        f" but the image is pytorch 24.12-hd-r{release} (sha256:beef)"
    )
    rebuild = f"Rebuild it with: ctrain layer build requirements.txt --on {name} -o /home/kim/my.sqsh"
    assert re.fullmatch(rebuild, caught.value.hint)


def test_layers_that_disagree_are_refused() -> None:
    layers = a_layer("/a.sqsh", einops="0.8.2"), a_layer("/b.sqsh", einops="0.8.1")
    complaint = r"layer /a.sqsh has einops 0.8.2, layer /b.sqsh has 0.8.1. Build one layer with both"
    with pytest.raises(UsageError, match=complaint):
        a_plan(layers=layers)


def test_a_layer_whose_path_engines_would_split() -> None:
    with pytest.raises(UsageError, match=r"cannot mount layer '/a,b.sqsh': engines read"):
        a_plan(layers=(a_layer("/a,b.sqsh"),))


IGNORING = facts(ignores_layers=True)
FLAT = an_image(flat=True, digest="sha256:f1a7")


def test_an_engine_that_ignores_layers_gets_the_flattened_image() -> None:
    image = a_plan(facts=IGNORING, flat=FLAT).image
    assert (image.version, image.instead_of) == ("24.12-hd-r3-flat", "24.12-hd-r3")
    assert (image.digest, image.path) == ("sha256:f1a7", str(FLAT.path))
    assert image.marker == "k1"  # still asserted by every rank


def test_other_engines_get_the_image_itself() -> None:
    image = a_plan(flat=FLAT).image
    assert (image.version, image.instead_of) == ("24.12-hd-r3", "")


def test_no_flattened_image_for_an_engine_that_needs_one() -> None:
    complaint = (
        r"partitions here \(overlay is off\), and no flat version of image pytorch 24.12-hd-r3 is published.* --flatten"
    )
    with pytest.raises(EngineError, match=complaint):
        a_plan(facts=IGNORING)


def test_an_engine_that_ignores_layers_mounts_none_of_the_users() -> None:
    with pytest.raises(EngineError, match=r"apptainer does not mount user layers here .* Ask the administrators"):
        a_plan(facts=IGNORING, flat=FLAT, layers=(a_layer(),))

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.errors import (
    ConfigError,
    CtrainError,
    DataError,
    EngineError,
    JobError,
    ResourceError,
    SchedulerError,
    UsageError,
)
from ctrain_runtime.facts import Allocation, Cluster
from ctrain_runtime.job import Dataset, Resources
from ctrain_runtime.manifest import Layer
from ctrain_runtime.plan.model import Mount
from samples.layers import a_layer
from samples.plans import CLUSTER, CPU_PARTITION, ENGINE, GPU_PARTITION, LOCAL, RUN, a_job, a_plan, a_site, an_image
from samples.plans import some_facts as facts

INSIDE = facts(cluster=dataclasses.replace(CLUSTER, allocation=Allocation("41", 4, "skl", cpus=20, gpus=2)))


def sized(**resources: Any) -> Any:
    return a_job(resources=Resources(**resources))


@pytest.mark.parametrize(
    ("parts", "nodes", "ranks", "gpus", "cores", "partition"),
    [
        ({}, 1, 8, 8, 8, "amd_a100nv_8"),
        ({"nodes": 2}, 2, 8, 8, 8, "amd_a100nv_8"),
        ({"nodes": 8, "gpus_per_node": 2}, 8, 2, 2, 32, "amd_a100nv_8"),
        ({"ranks_per_node": 3}, 1, 3, 8, 21, "amd_a100nv_8"),
        ({"gpus_per_node": 0}, 1, 1, 0, 64, "amd_a100nv_8"),
        ({"partition": "skl", "nodes": 2}, 2, 1, 0, 40, "skl"),
        ({"partition": "skl", "ranks_per_node": 40}, 1, 40, 0, 1, "skl"),
        ({"site": a_site(partition="skl")}, 1, 1, 0, 40, "skl"),
        ({"site": a_site(partition="skl"), "partition": "amd_a100nv_8"}, 1, 8, 8, 8, "amd_a100nv_8"),
        ({"job": sized(nodes=3, gpus_per_node=4, ranks_per_node=2)}, 3, 2, 4, 32, "amd_a100nv_8"),
        ({"job": sized(nodes=3, ranks_per_node=2), "nodes": 1, "ranks_per_node": 1}, 1, 1, 8, 64, "amd_a100nv_8"),
        ({"facts": INSIDE}, 4, 2, 2, 10, "skl"),
        ({"facts": INSIDE, "nodes": 2, "gpus_per_node": 1}, 2, 1, 1, 20, "skl"),
        ({**LOCAL}, 1, 1, 0, 1, ""),
        ({**LOCAL, "nodes": 2, "ranks_per_node": 2}, 2, 2, 0, 1, ""),
        ({**LOCAL, "facts": facts(gpus=2, cluster=Cluster())}, 1, 2, 2, 1, ""),
        ({**LOCAL, "job": sized(ranks_per_node=3)}, 1, 3, 0, 1, ""),
    ],
)
def test_sizes(parts: dict[str, Any], nodes: int, ranks: int, gpus: int, cores: int, partition: str) -> None:
    plan = a_plan(**parts)
    assert (plan.nodes, plan.ranks_per_node, plan.gpus_per_node) == (nodes, ranks, gpus)
    assert (plan.cpus_per_rank, plan.partition, plan.world_size) == (cores, partition, nodes * ranks)


@pytest.mark.parametrize(
    ("parts", "kind", "complaint"),
    [
        ({"nodes": 0}, UsageError, "--nodes 0: at least 1 is needed"),
        ({"nodes": -1}, UsageError, "--nodes -1: at least 1 is needed"),
        (
            {"nodes": 99},
            ResourceError,
            "partition amd_a100nv_8 has 8 nodes, 99 were asked for. Largest that fits: --nodes 8",
        ),
        ({"job": sized(nodes=9)}, ResourceError, "partition amd_a100nv_8 has 8 nodes, 9 were asked for"),
        ({"facts": INSIDE, "nodes": 5}, ResourceError, "allocation 41 has 4 nodes, 5 were asked for"),
        ({"gpus_per_node": -1}, UsageError, "--gpus-per-node -1: at least 0 is needed"),
        (
            {"gpus_per_node": 9},
            ResourceError,
            "a node of partition amd_a100nv_8 has 8 GPUs, 9 were asked for. Largest that fits: --gpus-per-node 8",
        ),
        ({"gpus_per_node": 1, "partition": "skl"}, ResourceError, "a node of partition skl has no GPUs, 1 were asked"),
        ({"facts": INSIDE, "gpus_per_node": 3}, ResourceError, "a node of allocation 41 has 2 GPUs, 3 were asked for"),
        ({"facts": INSIDE, "ranks_per_node": 21}, ResourceError, "a node of allocation 41 has 20 CPU cores, 21 were"),
        ({"ranks_per_node": 0}, UsageError, "--ranks-per-node 0: at least 1 is needed"),
        ({"ranks_per_node": 65}, ResourceError, "a node of partition amd_a100nv_8 has 64 CPU cores, 65 were asked"),
        ({"partition": "gpu"}, ResourceError, "there is no partition 'gpu' that is up. Partitions: amd_a100nv_8, skl"),
        ({"facts": facts(cluster=Cluster())}, SchedulerError, "Slurm shows no partition that is up"),
        ({**LOCAL, "nodes": 0}, UsageError, "--nodes 0: at least 1 is needed"),
        ({**LOCAL, "partition": "skl"}, UsageError, "site local has no partitions. Leave out --partition"),
        ({**LOCAL, "gpus_per_node": 1}, ResourceError, "this machine has no GPUs, 1 were asked for"),
        ({**LOCAL, "gpus_per_node": -1}, UsageError, "--gpus-per-node -1: at least 0 is needed"),
        ({**LOCAL, "gpus_per_node": -1, "ranks_per_node": 1}, UsageError, "--gpus-per-node -1: at least 0 is needed"),
    ],
)
def test_what_does_not_fit(parts: dict[str, Any], kind: type[CtrainError], complaint: str) -> None:
    with pytest.raises(kind) as caught:
        a_plan(**parts)
    assert str(caught.value).startswith(complaint)


def test_without_a_default_partition_the_first() -> None:
    first = dataclasses.replace(GPU_PARTITION, default=False)
    assert a_plan(facts=facts(cluster=Cluster("", (first, CPU_PARTITION), ("pmix",)))).partition == "amd_a100nv_8"


@pytest.mark.parametrize(
    ("parts", "time"),
    [
        ({}, "01:00:00"),
        ({"time": "2:00:00"}, "02:00:00"),
        ({"time": "90"}, "01:30:00"),
        ({"time": "2-00:00:00"}, "2-00:00:00"),
        ({"job": sized(time="3-0")}, "2-00:00:00"),  # a job's own default gives way to the partition's limit
        ({"job": sized(time="3-0"), "time": "10"}, "00:10:00"),
        ({"job": sized(time="infinite")}, "2-00:00:00"),
        ({"job": sized(time="2:00:00"), "partition": "skl"}, "01:00:00"),
        ({**LOCAL}, ""),
    ],
)
def test_time_limits(parts: dict[str, Any], time: str) -> None:
    assert a_plan(**parts).time == time


def test_a_partition_without_a_limit() -> None:
    endless = dataclasses.replace(GPU_PARTITION, time_limit=None)
    there = facts(cluster=Cluster("", (endless,), ("pmix",)))
    assert a_plan(facts=there, time="infinite").time == "UNLIMITED"
    assert a_plan(facts=there, time="9-0").time == "9-00:00:00"


@pytest.mark.parametrize(
    ("time", "kind", "complaint"),
    [
        (
            "3-0",
            ResourceError,
            "partition amd_a100nv_8 allows 2-00:00:00, 3-0 was asked for. Longest that fits: --time 2-00:00:00",
        ),
        ("infinite", ResourceError, "partition amd_a100nv_8 allows 2-00:00:00, infinite was asked for"),
        ("0", UsageError, "--time 0: at least one minute is needed"),
        ("soon", UsageError, "time 'soon' is not a time limit"),
    ],
)
def test_an_explicit_time_never_gives_way(time: str, kind: type[CtrainError], complaint: str) -> None:
    with pytest.raises(kind) as caught:
        a_plan(time=time)
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("launcher", "wanted", "offered", "chosen"),
    [
        ("mpi", ("pmix", "pmi2"), ("pmi2", "pmix"), "pmix"),
        ("mpi", ("pmix", "pmi2"), ("none", "pmi2"), "pmi2"),
        ("mpi", ("pmix_v4",), ("pmix", "pmix_v4"), "pmix_v4"),
        ("env", ("pmix",), (), "none"),
    ],
)
def test_mpi(launcher: Any, wanted: tuple[str, ...], offered: tuple[str, ...], chosen: str) -> None:
    there = facts(cluster=Cluster("", (GPU_PARTITION,), offered))
    assert a_plan(job=a_job(launcher=launcher), site=a_site(mpi=wanted), facts=there).mpi == chosen


def test_a_slurm_without_a_way_to_start_mpi() -> None:
    there = facts(cluster=Cluster("", (GPU_PARTITION,), ("none", "cray_shasta")))
    with pytest.raises(SchedulerError, match=r"by pmix or pmi2 \(it has: none, cray_shasta\). Set launcher: env"):
        a_plan(facts=there)
    assert a_plan(facts=there, site=LOCAL["site"]).mpi == ""


def test_options_of_sbatch() -> None:
    site = a_site(submit=("--account=ai", "--qos=long"), comment="pytorch")
    assert a_plan(site=site).submit == ("--account=ai", "--qos=long", "--comment=pytorch")
    assert a_plan(site=site, comment="other words").submit[-1] == "--comment=other words"
    assert a_plan().submit == ()


def test_the_environment_and_who_wins() -> None:
    site = a_site(env={"A": "site", "B": "site", "C": "site"})
    environment = a_plan(site=site, job=a_job(env={"B": "job", "C": "job"}), env=("C=said=x", "D=")).environment
    assert environment == {
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "CTRAIN_RUN_DIR": str(RUN),
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "A": "site",
        "B": "job",
        "C": "said=x",
        "D": "",
    }


def test_the_environment_of_a_local_run_and_of_one_without_mpi() -> None:
    assert a_plan(**LOCAL).environment["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert not any(name.startswith("OMPI") for name in a_plan(job=a_job(launcher="env")).environment)


@pytest.mark.parametrize("text", ["A", "=b", "1A=b", "A-B=c", "A B=c", "É=c", "", "A;B=c"])
def test_variables_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        a_plan(env=(text,))
    assert str(caught.value) == f"--env {text!r} is not NAME=VALUE. As in: --env NCCL_DEBUG=INFO"


@pytest.mark.parametrize(
    ("parts", "kind", "complaint"),
    [
        ({"job": a_job(env={"A;B": "c"})}, JobError, "job digits: env: 'A;B' is not the name of a variable"),
        ({"site": a_site(env={"A B": "c"})}, ConfigError, "site neuron: env: 'A B' is not the name of a variable"),
    ],
)
def test_names_from_files_never_become_shell_code(
    parts: dict[str, Any], kind: type[CtrainError], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint):
        a_plan(**parts)


def test_mounts() -> None:
    plan = a_plan(
        job=a_job(folder=Path("/home/kim/job"), data=Dataset("imagenet", "/images")),
        site=a_site(mounts=("/opt/site",), datasets={"imagenet": "/apps/imagenet"}),
        mounts=("/a", "/b:/c", "/d:/e:ro", "/f:/g:rw"),
        resume="/scratch/kim/old/checkpoint",
    )
    assert list(map(str, plan.mounts)) == [
        "/opt/site:/opt/site:rw",
        "/a:/a:rw",
        "/b:/c:rw",
        "/d:/e:ro",
        "/f:/g:rw",
        "/home/kim/job:/home/kim/job:rw",
        f"{RUN}:{RUN}:rw",
        "/apps/imagenet:/images:ro",
        "/scratch/kim/old/checkpoint:/resume:ro",
    ]
    assert plan.environment["CTRAIN_RESUME"] == "/resume"


def test_data() -> None:
    wants = a_job(data=Dataset("imagenet"))
    has = a_site(datasets={"imagenet": "/apps/imagenet"})
    assert a_plan(job=wants, site=has, data="/mine").mounts[-1] == Mount("/mine", "/data", read_only=True)
    assert a_plan(data="/mine").mounts[-1] == Mount("/mine", "/data", read_only=True)
    with pytest.raises(DataError) as caught:
        a_plan(job=wants)
    assert str(caught.value) == (
        "job digits needs data set 'imagenet', which site neuron does not have. Give its folder with --data DIR"
    )


@pytest.mark.parametrize("text", ["/a:/b:x", "/a:/b:ro:rw", "/a:ro", "a", "", "/a,b"])
def test_mounts_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="mount"):
        a_plan(mounts=(text,))


def test_the_rest_of_a_plan() -> None:
    plan = a_plan(arguments=("--lr", "0.1"), facts=INSIDE)
    assert (plan.run, plan.run_directory, plan.allocation) == ("digits-1", str(RUN), "41")
    assert plan.command == ("python", "train.py", "--lr", "0.1")
    assert (plan.job, plan.site, plan.scheduler, plan.engine) == ("digits", "neuron", "slurm", ENGINE)


def test_the_image_of_a_plan() -> None:
    image = a_plan().image
    assert (image.version, image.channel, image.marker, image.cuda) == ("24.12-hd-r3", "prod", "k1", True)
    base = a_plan(image=an_image(layers=(Layer("pytorch-cpu", "k0", 3),), software={"torch": "2.6.0"})).image
    assert (base.marker, base.cuda) == ("", False)


def test_user_layers_are_planned_in_their_order() -> None:
    first, second = a_layer("/a.sqsh", "a" * 64, einops="0.8.2"), a_layer("/b.sqsh", "b" * 64, einops="0.8.2")
    planned = a_plan(layers=(first, second)).layers
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
    with pytest.raises(UsageError, match=r"can't mount layer '/a,b.sqsh': engines read"):
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
    complaint = r"overlay partitions here, and no flat version of image pytorch 24.12-hd-r3 is published.* --flatten"
    with pytest.raises(EngineError, match=complaint):
        a_plan(facts=IGNORING)


def test_an_engine_that_ignores_layers_mounts_none_of_the_users() -> None:
    with pytest.raises(EngineError, match=r"apptainer does not mount user layers here .* Ask the administrators"):
        a_plan(facts=IGNORING, flat=FLAT, layers=(a_layer(),))

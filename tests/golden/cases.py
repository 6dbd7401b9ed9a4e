"""What the golden files hold: for each case the scripts and the plan of one launch."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

from ctrain_runtime import gpus
from ctrain_runtime.cluster.facts import Facts
from ctrain_runtime.cluster.groups import usual
from ctrain_runtime.cluster.model import Allocation, Cluster, Machine, NodeGroup
from ctrain_runtime.images.image import Image
from ctrain_runtime.job import Dataset
from ctrain_runtime.plan.model import Expectation, LaunchPlan, Preflight
from ctrain_runtime.run import site_engine
from ctrain_runtime.run.directory import as_data
from ctrain_runtime.run.targets import describe_cluster
from ctrain_runtime.site.files import BUILT_IN_DIR
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import load_site
from samples.layers import a_layer
from samples.plans import (
    CLUSTER,
    ENGINE,
    GPU_PARTITION,
    LOCAL,
    a_job,
    a_launch,
    a_plan,
    a_site,
    an_image,
    changed,
    some_facts,
)

FOLDER = Path(__file__).parent
SITE = a_site(submit=("--account=ai lab",), comment="pytorch", datasets={"imagenet": "/apps/imagenet"})
ALLOCATION = Allocation("41873", 2, "amd_a100nv_8", cpus=64, gpus=8)
PBS_ALLOCATION = Allocation("41.pbs", 2, "workq", cpus=64, gpus=8)
INSIDE = some_facts(cluster=dataclasses.replace(CLUSTER, allocation=ALLOCATION))
IN_STEP = some_facts(
    cluster=dataclasses.replace(CLUSTER, allocation=dataclasses.replace(ALLOCATION, in_step=True, minutes_left=30))
)
# Memory is allocated like cores, and each core counts as two CPUs.
SHARED = some_facts(
    cluster=dataclasses.replace(
        CLUSTER,
        partitions=(dataclasses.replace(GPU_PARTITION, cpus=128, threads_per_core=2, memory=1_000_000),),
        memory_is_consumable=True,
    )
)
# Nodes of several kinds, of which nothing but their GPUs, or a resource of PBS, tells one from another.
V100_NODES = NodeGroup(40, 4, "v100", names=tuple(f"v{number:02}" for number in range(20)), nodes=20)
A100_NODES = NodeGroup(128, 8, "a100", names=("a01", "a02"), nodes=1, unavailable=("drained",))


def _mixed(*groups: NodeGroup, can_select: bool) -> Facts:
    part = usual(dataclasses.replace(GPU_PARTITION, name="gpu", cpu_bind=""), groups)
    return some_facts(cluster=dataclasses.replace(CLUSTER, partitions=(part,), can_select=can_select))


def _by_model(group: NodeGroup) -> NodeGroup:
    return dataclasses.replace(group, features=frozenset({f"accelerator_model={group.gpu_type}"}))


PBS_CLUSTER = Cluster((dataclasses.replace(GPU_PARTITION, cpu_bind=""),))
ROCM_IMAGE = an_image(name="rocm-pytorch", software={"torch": "2.9.1", "rocm": "6.4.2"})
XPU_IMAGE = an_image(name="xpu-pytorch", software={"torch": "2.10.0+xpu", "xpu": "20250302"})
# As NVIDIA's of 25.10; its NCCL is new enough for all that sites have by its version.
OF_NVIDIA = {"torch": "2.9.0", "cuda": "13.0", "nccl": "2.27.7", "horovod": "0.28.1"}
NVIDIA_IMAGE = an_image(software={**OF_NVIDIA, "mpi": "Open MPI 4.1.7", "hpcx": "2.24.1"})
MPICH_IMAGE = an_image(software={**OF_NVIDIA, "mpi": "HYDRA 4.3.1"})  # for the mpiexec of PALS and of Hydra
CPU_IMAGE = an_image(name="pytorch-cpu", software={"torch": "2.13.0"})

PLANS: dict[str, LaunchPlan] = {
    "slurm-mpi": a_plan(
        facts=some_facts(lease_dir="/apps/ctrain/in-use"),
        job=a_job(
            command=("python", "train.py", "--name", "it's $HOME"),
            data=Dataset("imagenet"),
            env={"NCCL_DEBUG": "WARN"},
        ),
        site=SITE,
        nodes=2,
        env={"MESSAGE": "two words"},
        resume="/scratch/kim/ctrain/digits-0/checkpoint",
    ),
    "slurm-env": a_plan(
        job=a_job(launcher="env", directory=Path("/home/kim/my job"), workdir="/home/kim/my job"),
        layers=(a_layer("/home/kim/my layer.sqsh", einops="0.8.2"),),
    ),
    "allocation": a_plan(facts=INSIDE, gpus_per_node=4),
    "allocation-step": a_plan(facts=IN_STEP, job=a_job(launcher="env"), nodes=1, gpus_per_node=0, cpu_bind="none"),
    "slurm-preflight": changed(
        a_plan(nodes=2), preflight=Preflight(True, "first run of this image here", "nccl", 36.5, "AWS Libfabric")
    ),
    "slurm-staging": a_plan(site=a_site(staging="/local disk"), nodes=2, stage="always"),
    "slurm-torchrun": changed(
        a_plan(job=a_job(launcher="torchrun"), nodes=2),
        estimate=Expectation("A100", 10770816, {"parameters": 21541632, "output": 4096}, 79027986432, 4096, 100, 0.25),
    ),
    "slurm-hpcx": a_plan(
        site=a_site(mpi=("pmi2", "pmix")),
        image=an_image(software={"cuda": "13.4", "horovod": "0.28.1", "hpcx": "2.50", "mpi": "Open MPI 5.0.10"}),
        nodes=2,
    ),
    "slurm-gloo": a_plan(job=a_job(launcher="gloo"), nodes=2),
    "slurm-node": changed(
        a_plan(job=a_job(launcher="node", command=("bash", "run.sh")), nodes=2),
        preflight=Preflight(True, "NCCL on several nodes", "nccl"),
    ),
    "slurm-independent": a_plan(job=a_job(launcher="env", independent=True), nodes=2),
    "slurm-many-ranks": a_plan(job=a_job(launcher="env"), nodes=8, ranks_per_node=40),
    "slurm-share": a_plan(
        facts=SHARED,
        job=a_job(env={"HF_TOKEN": "hf_it's secret"}),
        gpus_per_node=2,
        settings={"account": "ai", "comment": "pytorch"},
        scheduler_options=("--switches=1",),
        env={"WANDB_API_KEY": None, "EMPTY_PASSWORD": ""},
    ),
    "slurm-mixed": a_plan(facts=_mixed(V100_NODES, A100_NODES, can_select=True), nodes=2),
    "slurm-shell": a_plan(job=a_job(launcher="env"), nodes=1, ranks_per_node=1, gpus_per_node=1, interactive=True),
    "pbs-env": a_plan(
        site=a_site(name="ours", scheduler="pbs", mpi=(), staging="/local", submit=("-l filesystems=home:eagle",)),
        facts=some_facts(cluster=PBS_CLUSTER, lease_dir="/apps/ctrain/in-use"),
        job=a_job(launcher="env"),
        nodes=2,
        stage="always",
        gpus_per_node=4,
        settings={"account": "ai lab", "constraint": "gpu_type=a100", "mem": "64gb"},
        scheduler_options=("-Wdepend=afterok:41.pbs",),
        env={"WANDB_API_KEY": None},
    ),
    "pbs-mixed": a_plan(
        site=a_site(name="ours", scheduler="pbs", mpi=()),
        facts=_mixed(_by_model(V100_NODES), _by_model(A100_NODES), can_select=False),
        job=a_job(launcher="env"),
        nodes=2,
    ),
    "pbs-allocation": changed(
        a_plan(
            site=a_site(name="ours", scheduler="pbs", mpi=("pals",), cpu_bind="depth"),
            facts=some_facts(cluster=dataclasses.replace(PBS_CLUSTER, mpi=("pals",), allocation=PBS_ALLOCATION)),
        ),
        preflight=Preflight(True, "site key preflight"),
    ),
    "local": a_plan(
        **{**LOCAL, "facts": dataclasses.replace(LOCAL["facts"], is_root=True)}, image=CPU_IMAGE, ranks_per_node=2
    ),
}


HERE = Cluster(machine=Machine(gpus=0, cores=1))


@functools.cache
def _site(name: str) -> Site:
    return load_site(name)[0]


# Each site that ships, as a dry run plans it where there is no cluster.
def _site_plan(name: str, launcher: str) -> LaunchPlan:
    site = _site(name)
    site = dataclasses.replace(site, staging=site.staging.replace("$USER", "kim"))
    engine = site_engine.find(site)[0] if site.engine.path else ENGINE
    return a_plan(
        site=site,
        image=_site_image(site, launcher),
        facts=some_facts(cluster=describe_cluster(site) if site.partitions else HERE, engine=engine),
        job=a_job(launcher=launcher),
        settings={option: "mine" for option in site.required if option != "comment"},
        nodes=2 if site.partitions else 1,
        gpus_per_node=None if site.partitions else 0,
    )


def _site_image(site: Site, launcher: str) -> Image:
    """One for the site's GPUs, with an MPI that its scheduler can start."""
    makers = {gpus.maker(part.gpu_type) for part in site.partitions.values()}
    if makers & {"amd", "intel"}:
        return ROCM_IMAGE if "amd" in makers else XPU_IMAGE
    return MPICH_IMAGE if launcher == "mpi" and site.scheduler == "pbs" else NVIDIA_IMAGE


SITE_PLANS: dict[str, LaunchPlan] = {
    f"sites/{name}-{launcher}": _site_plan(name, launcher)
    for name in sorted(path.stem for path in BUILT_IN_DIR.glob("*.yaml"))
    for launcher in ("env", "gloo", "mpi", "node", "torchrun")
}


def _without(text: str, lines: set[str]) -> str:
    return "\n".join(line for line in text.split("\n") if line not in lines)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def files() -> dict[str, str]:
    """Name of each golden file -> what it should hold."""
    found, whole = {}, []
    everywhere = {
        line for plan in PLANS.values() for text in a_launch(plan).scripts.values() for line in text.split("\n")
    }
    for case, plan in {**PLANS, **SITE_PLANS}.items():
        launch = a_launch(plan)
        scripts, data = launch.scripts, as_data(launch)
        del data["scripts"]  # they lie beside it
        if case in SITE_PLANS:  # of all scripts, the lines that no script of PLANS has, and a digest of the whole
            whole += [f"{_digest(text)}  {case}/{name}\n" for name, text in sorted(scripts.items())]
            own = {name: _without(text, everywhere) for name, text in scripts.items()}
            scripts = {"own-lines.txt": "".join(f"--- {name}\n{text}\n" for name, text in own.items() if text)}
        parts = {**scripts, "plan.json": json.dumps(data, indent=2) + "\n"}
        found.update({f"{case}/{name}": text for name, text in parts.items()})
    return {**found, "sites/scripts.sha256": "".join(whole)}

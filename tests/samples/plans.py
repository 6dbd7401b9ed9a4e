"""A job, a site, an image and facts that make a valid plan; a test says only what matters to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ctrain_runtime import launchers, schedulers
from ctrain_runtime.cluster.facts import Facts
from ctrain_runtime.cluster.model import Cluster, Machine, Partition
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.images.image import Image
from ctrain_runtime.job import Job, Resources
from ctrain_runtime.plan import sizing
from ctrain_runtime.plan.make import make_plan
from ctrain_runtime.plan.model import Inputs, Launch, LaunchPlan
from ctrain_runtime.plan.options import Options
from ctrain_runtime.plan.size_request import make_size_request
from ctrain_runtime.site.model import Site
from ctrain_runtime.store.manifest import Layer, Manifest, TestResult

RUN = Path("/scratch/kim/ctrain/digits-1")
ENGINE = Engine("apptainer", "/usr/bin/apptainer", "1.4.5")
GPU_PARTITION = Partition(
    "amd_a100nv_8", True, nodes=8, cpus=64, gpus=8, gpu_type="a100", time_limit=2880, cpu_bind="cores"
)
CPU_PARTITION = Partition("skl", False, nodes=2, cpus=40, gpus=0, time_limit=60, cpu_bind="cores")
CLUSTER = Cluster((GPU_PARTITION, CPU_PARTITION), ("pmix", "pmix_v4", "pmi2", "none"))


def a_job(**changes: Any) -> Job:
    plain = Job(
        name="digits",
        command=("python", "train.py"),
        images=("pytorch",),
        launcher="mpi",
        resources=Resources(),
        data=None,
        env={},
        workdir="/opt/ctrain/examples/digits",
    )
    return dataclasses.replace(plain, **changes)


def a_site(**changes: Any) -> Site:
    return dataclasses.replace(Site(name="neuron", scheduler="slurm"), **changes)


def a_manifest(**changes: Any) -> Manifest:
    plain = Manifest(
        name="pytorch",
        tag="24.12",
        stack="hd",
        digest="sha256:9f2c41d0a7e3",
        size=5,
        arch="amd64",
        built="2026-11-18T01:02:03Z",
        layers=(Layer("pytorch-ngc", "k0", 3), Layer("horovod", "k1", 2)),
        software={"torch": "2.6.0", "cuda": "12.6"},
        tests=(TestResult("imports", True, "1.2"),),
        tools={"apptainer": "1.4.5"},
        release=3,
        published="2026-11-19T01:02:03Z",
    )
    return dataclasses.replace(plain, **changes)


def an_image(**changes: Any) -> Image:
    manifest = a_manifest(**changes)
    return Image(Path("/apps/ctrain") / manifest.file_name, manifest, "prod")


def some_facts(**changes: Any) -> Facts:
    return dataclasses.replace(Facts(is_root=False, engine=ENGINE, cluster=CLUSTER), **changes)


def a_plan(**parts: Any) -> LaunchPlan:
    """A plan of these parts, as run/prepare.py makes it; the fields of Options and Inputs may be given too."""
    job, site, facts = parts.pop("job", a_job()), parts.pop("site", a_site()), parts.pop("facts", some_facts())
    image, run = parts.pop("image", an_image()), parts.pop("run_directory", RUN)
    job = dataclasses.replace(job, interactive=parts.pop("interactive", False))
    inputs = Inputs(**_fields(Inputs, parts))
    options = Options(**{"preflight": "off", **_fields(Options, parts)})
    parts = {name: value for name, value in parts.items() if not hasattr(inputs, name) and not hasattr(options, name)}
    fit = sizing.fit(make_size_request(options, job, facts.cluster), facts.cluster, site)
    return make_plan(job, site, image, options, facts, fit, inputs, run, **parts)


def _fields(kind: type[Any], parts: dict[str, Any]) -> dict[str, Any]:
    return {field.name: parts[field.name] for field in dataclasses.fields(kind) if field.name in parts}


def changed(plan: LaunchPlan, **values: Any) -> LaunchPlan:
    """The plan with other values, in whichever of its groups they are."""
    names = [field.name for field in dataclasses.fields(plan) if dataclasses.is_dataclass(getattr(plan, field.name))]
    for name, value in values.items():
        group = next((part for part in names if name != part and hasattr(getattr(plan, part), name)), "")
        part = dataclasses.replace(getattr(plan, group), **{name: value}) if group and name not in names else value
        plan = dataclasses.replace(plan, **{group if part is not value else name: part})
    return plan


def a_launch(plan: LaunchPlan) -> Launch:
    """The scripts of a plan."""
    scheduler = schedulers.get(plan.scheduler)
    return scheduler.render(plan, launchers.make_task(plan, scheduler.identity(plan)))


LOCAL: dict[str, Any] = {
    "site": Site(name="local", scheduler="local"),
    "facts": some_facts(cluster=Cluster(machine=Machine(gpus=0, cores=2))),
}

"""Requests for runs, and a machine on which they can be prepared."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from ctrain_runtime.cluster.model import Partition
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.options import Options
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.request import Request
from ctrain_runtime.site.select import select_site
from samples import programs as fakes
from samples.sample_images import write_store

HERE = platform.machine()
GPU = Partition("gpu", True, nodes=4, cpus=16, gpus=2, gpu_type="a100", time_limit=1440, arch=HERE)


def make_machine(programs: Path, tmp_path: Path) -> Path:
    """A machine with an engine, Slurm, a store with the image pytorch, and the job ./job."""
    fakes.answer(programs, "apptainer", "apptainer version 1.4.5\n")
    fakes.slurm(programs, GPU)
    write_store(tmp_path / "store", {}, channels={"pytorch_prod": "pytorch_24.12-hd-py3-r3.sif"})
    (tmp_path / "job").mkdir()
    (tmp_path / "job/job.yaml").write_text("command: [python, train.py]\nimage: pytorch\nlauncher: env\n")
    (tmp_path / "job/train.py").touch()
    return tmp_path


def asked(site: str = "generic-slurm", options: Any = None, **parts: Any) -> Request:
    """A request for ./job on a site, with these options; or for a command, with an image. The other parts are options,
    too, or of the request itself."""
    job = "" if "image" in parts and "command" in parts else "./job"
    own = {name: parts.pop(name) for name in list(parts) if not hasattr(Options(), name)}
    return Request(select_site(site, {"store": "store"}), Options(**{"job": job, **(options or {}), **parts}), **own)


def plan_of(*arguments: Any, **parts: Any) -> LaunchPlan:
    return prepare(asked(*arguments, **parts)).launch.plan

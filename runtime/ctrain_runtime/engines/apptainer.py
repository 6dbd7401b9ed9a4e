"""Apptainer and Singularity, 3.9 to 4.x: the argv of `exec` and how variables pass into the container."""

from __future__ import annotations

import re

from ctrain_runtime.facts import Engine
from ctrain_runtime.plan.model import LaunchPlan

HOME = "/home/ctrain"  # inside; a private, empty folder of the node

# What passes from the node into the container, besides the plan's own environment: who the rank is, which GPUs it
# has, and how MPI finds its server. Everything else stays out (--cleanenv): host PYTHONPATH, CONDA, LD_PRELOAD ...
PASSED_PREFIXES = ("SLURM_", "PMIX_", "PMI_", "MASTER_")
PASSED = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "OMP_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TERM"),
)

NO_EVAL_SINCE = {"apptainer": (1, 1), "singularity": (3, 10)}


def exec_argv(plan: LaunchPlan) -> list[str]:
    """`apptainer exec OPTIONS`, without the image and the command: the caller may add binds in between."""
    argv = [plan.engine.path, "--quiet", "exec", "--cleanenv", "--no-mount", "cwd", "--pwd", plan.workdir]
    if _numbers(plan.engine) >= NO_EVAL_SINCE[plan.engine.name]:
        argv.append("--no-eval")  # else a $ in the value of a variable would be expanded, or run, by a shell inside
    if plan.root:
        argv.append("--userns")  # root in a restricted machine may lack capabilities that a plain exec asks for
    if plan.image.cuda:
        argv.append("--nv")
    for mount in plan.mounts:
        argv += ["--bind", str(mount)]
    over = [plan.image.path] if plan.image.base else []
    for layer in (*over, *(layer.path for layer in plan.layers)):
        argv += ["--overlay", f"{layer}:ro"]  # a later one lies above
    return argv


def _numbers(engine: Engine) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", engine.version)[:2])


def variable(plan: LaunchPlan, name: str) -> str:
    """The name under which the host exports `name` so that the container sees it, whatever the image sets."""
    return f"{plan.engine.name.upper()}ENV_{name}"

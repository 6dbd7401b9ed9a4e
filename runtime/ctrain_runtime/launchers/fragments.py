"""The lines of task.sh and rank.sh, each rendered here and nowhere else: variables, and calls of ctrain.bash."""

from __future__ import annotations

import hashlib
import shlex

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import quote_argv
from ctrain_runtime.engines import apptainer
from ctrain_runtime.launchers import independent, node, staging
from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.plan.profile import NSYS, PROFILE
from ctrain_runtime.plan.task import TaskIdentity
from ctrain_runtime.schedulers.script import library

# GPUs and threads of a rank. Besides who it is, everything else of the node stays out of the container.
DEVICES = (
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TERM"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),  # AMD, Intel
)
MEMBER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
INSIDE = f'/bin/sh "$run/{run_files.INSIDE_SCRIPT}" "$RANK" "$NODE_RANK"'


def passed(plan: LaunchPlan) -> tuple[str, ...]:
    """The variables of a task that pass into its container, whatever its scheduler."""
    attempt = ("CTRAIN_ATTEMPT",) if plan.program.has_attempts else ()
    if plan.program.independent:
        return (*independent.VARIABLES, *attempt, *DEVICES)
    return (*(node.VARIABLES if plan.program.launcher == "node" else MEMBER), *attempt, *DEVICES)


def head(plan: LaunchPlan, purpose: str) -> str:
    """The start of a script."""
    return f"#!/bin/bash -p\n# {purpose}\n{library(plan)}"


def recorder(plan: LaunchPlan) -> str:
    """Sends the output of a rank to its log. Needs RANK and NODE_RANK."""
    return "record_rank" if plan.recorded_ranks <= run_files.MAX_RANK_LOGS else "record_rank_with_node"


def world_check(plan: LaunchPlan, started_by: str) -> str:
    return f"check_world {plan.recorded_ranks} {plan.unit}s {started_by}"


def sizes(plan: LaunchPlan) -> str:
    """Assignments of how many ranks a node has, and threads a rank."""
    return f"LOCAL_WORLD_SIZE={plan.size.ranks_per_node} OMP_NUM_THREADS={plan.size.cores_per_rank}"


def home(plan: LaunchPlan) -> str:
    """The home on the node's disk. What programs compile is kept for the same image and layers."""
    image = "".join((plan.image.digest, *(layer.digest for layer in plan.image.layers)))
    key = hashlib.sha256(image.encode()).hexdigest()[:16] if plan.image.digest else ""
    return quote_argv(["use_home", plan.run_key, key])


def container(plan: LaunchPlan, identity: TaskIdentity) -> list[str]:
    """Lines that set the array `launch` to the engine's argv up to the image, and export the container's environment.

    Binds that only the node knows come from the array `binds`, which the identity may have filled, and the data set.
    """
    image, program, environment, copy = plan.image, plan.program, plan.environment, plan.staging.data_copy
    options = apptainer.exec_argv(
        image.engine, workdir=program.workdir, as_root=program.as_root, cuda=image.cuda, rocm=image.rocm
    )
    mounts = [str(mount) for mount in plan.mounts.paths if not copy or mount != copy.mount]
    modules = apptainer.load_modules(image.engine, environment.modules)
    names = (*passed(plan), *identity.passed, *environment.passed)
    return [
        *modules,
        *([f"need_engine {shlex.quote(image.engine.path)}"] if modules else []),
        *order_gpus(plan, identity),
        *(independent.own_gpus(plan) if program.independent else []),
        *apptainer.container_environment(image.engine, environment.variables, names, identity.passed_prefixes),
        *([f"resume_from_own {apptainer.environment_prefix(image.engine)}"] if program.has_attempts else []),
        *staging.data(plan),
        *staging.copy_of_image(plan),
        f"launch=({quote_argv(options)})",
        *(f"launch+=(--bind {shlex.quote(mount)})" for mount in mounts),
        *(f"launch+=(--overlay {shlex.quote(f'{layer.path}:ro')})" for layer in image.layers),
        *([f"add_host_libraries {quote_argv(environment.host_libraries)}"] if environment.host_libraries else []),
        f"enter {apptainer.HOME} {staging.image(plan)}",
    ]


def order_gpus(plan: LaunchPlan, identity: TaskIdentity) -> list[str]:
    """The line that puts the visible GPUs (of the image's maker) into the site's order."""
    order = plan.placement.gpu_order
    if not order:
        return []
    name = "ROCR_VISIBLE_DEVICES" if plan.image.rocm else "CUDA_VISIBLE_DEVICES"
    every = ",".join(map(str, sorted(order))) if plan.size.gpus_per_node == len(order) else ""
    return [quote_argv(["order_gpus", name, identity.gpu_numbers, every, *map(str, order)])]


def inside(plan: LaunchPlan) -> str:
    """The start of a rank's command in the container: inside.sh with its checks, up to the program."""
    checks = ["marker", plan.image.marker] if plan.image.marker else []
    for layer in plan.image.layers:
        checks += ["layer", layer.key, layer.path]
    variables = plan.environment.variables
    ranks = ["nsys", variables[f"{PROFILE}_RANKS"]] if variables.get(PROFILE) == NSYS else []
    return " ".join((INSIDE, quote_argv([*libraries(plan), *ranks, *checks, "need", plan.program.command[0], "run"])))


def libraries(plan: LaunchPlan) -> list[str]:
    """Words of inside.sh that put the libraries of the site and of the right driver first on the loader's path. Of
    patterns, the first is to come first."""
    paths = ["paths", " ".join(reversed(plan.environment.library_paths))] if plan.environment.library_paths else []
    return [*paths, *(["driver", str(plan.image.native_driver)] if plan.image.native_driver else [])]

"""The variables of the program, besides the image's own and those of its rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.engines.apptainer import HOME
from ctrain_runtime.errors import ConfigError, CtrainError, JobError, UsageError
from ctrain_runtime.job import Job
from ctrain_runtime.plan.admission import numbers
from ctrain_runtime.plan.options import Options
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import expand

RESUME = "/resume"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# By the end of a name: HF_TOKEN and PGPASSWORD are secrets, TOKEN_PATH and TOKENIZERS_PARALLELISM are not.
SECRET = re.compile(
    r"(_KEYS?|API_?KEYS?|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|SSHPASS|CREDENTIALS?|(^|_)(PAT|PASS|PWD|AUTH|JWT))$",
    re.IGNORECASE,
)
NOT_SECRET = frozenset({"PWD", "OLDPWD"})
LOGIN = re.compile(r"://[^/@\s:]*:[^/@\s]+@")  # user and password in a URL, as of proxies
MASK = "***"
# Set by the launcher, rank by rank.
IDENTITY = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("CTRAIN_RUN_DIR", "CTRAIN_RESUME", "CTRAIN_TASK", "CTRAIN_TASKS", "CTRAIN_NODE", "CTRAIN_ATTEMPT"),
    "CTRAIN_HEARTBEAT",
)

# Set by launcher node, so that what starts the ranks of each node makes one world of them.
_PET = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "RDZV_ENDPOINT", "RDZV_ID")
NODE_IDENTITY = (
    *(f"PET_{name}" for name in _PET),
    *("CTRAIN_NODES", "CTRAIN_HOSTS", "CTRAIN_RANKS_PER_NODE", "CTRAIN_GPUS_PER_NODE"),
)

# What would run, or land outside of the node's own HOME, if images and tools had their way.
DEFAULTS = {
    "PYTHONNOUSERSITE": "1",  # ~/.local would shadow the image's packages
    "PYTHONUNBUFFERED": "1",  # rank 0 is shown live
    "BASH_ENV": "",  # NGC images probe the GPU at each start of bash and sh: 2.5 s
    "ENV": "",
    "TORCHINDUCTOR_CACHE_DIR": f"{HOME}/.cache/torchinductor",  # its default is below /tmp, which jobs share
    "TORCH_EXTENSIONS_DIR": f"{HOME}/.cache/torch_extensions",  # where scripts put what earlier runs compiled
}

# torch's recorder of collectives (docs/hangs.md): by the first version that has these names. Where it has two for the
# same, the newer one wins inside torch: hence none is set beside any of the user's.
COLLECTIVES = {
    (0,): ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    # TORCH_FR_BUFFER_SIZE alone would record, but write nothing: that goes by the old name, of which torch warns.
    (2, 8): ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE"),
    (2, 11): ("", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE"),  # it records as many by default
}
COLLECTIVES_PREFIXES = frozenset(prefix for *_, prefix in COLLECTIVES.values())
RECORDED_COLLECTIVES = "2000"  # of each rank, the last ones
_RECORDER = frozenset({"TORCH_FR_BUFFER_SIZE", *(name for names in COLLECTIVES.values() for name in names)})


def make_environment(
    job: Job,
    site: Site,
    options: Options,
    run_directory: Path,
    mpi: Mapping[str, str],
    multinode: Mapping[str, str] = MappingProxyType({}),
    profile: Mapping[str, str] = MappingProxyType({}),
    torch: str = "",
) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of the program, and the origin of each; later ones win.

    `multinode` are those of the site for several nodes, `profile` those of --profile; `torch` is the version whose
    collectives are recorded, "" for none. Raises UsageError, JobError or ConfigError for bad names.
    """
    check_site_names(site, "env")
    check_site_names(site, "env_multinode")
    _check_names(job.env, JobError, f"{job.where}: env")
    run = {"CTRAIN_RUN_DIR": str(run_directory), **({"CTRAIN_RESUME": RESUME} if options.resume else {})}
    layers = (
        ("ctrain", {**DEFAULTS, **run}),
        ("ctrain, for MPI", mpi),
        (f"site {site.name}: cache", _caches(site)),
        (f"site {site.name}: env", site.env),
        (f"site {site.name}: env_multinode", multinode),
        (f"job {job.name}: env", job.env),
        ("option", {**profile, **_assigned(options.env)}),
    )
    passed = passed_names(options.env)  # the command line wins over the job
    variables: dict[str, str] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        for name, value in layer.items():
            if name not in passed:
                variables[name], origins[name] = value, origin
    recorder = collectives(torch, run_directory)
    if not _RECORDER.intersection((*variables, *passed)):
        variables.update(recorder)
        origins.update(dict.fromkeys(recorder, "ctrain, for torch"))
    if job.launcher == "node":
        _refuse_node_identity({**origins, **dict.fromkeys(passed, "option")})
    return variables, origins


def collectives(torch: str, run_directory: Path) -> dict[str, str]:
    """The variables by which a version of torch writes its last collectives when one of NCCL times out; none for one
    that is unknown."""
    version = numbers(torch)
    if not version:
        return {}
    size, write, prefix = COLLECTIVES[max(first for first in COLLECTIVES if first <= version)]
    values = {size: RECORDED_COLLECTIVES, write: "1", prefix: f"{run_directory}/{run_files.COLLECTIVES}/rank"}
    return {name: value for name, value in values.items() if name}


def _refuse_node_identity(origins: Mapping[str, str]) -> None:
    """Refuse variables that would give each node another world than the plan's. Raises UsageError."""
    for name in NODE_IDENTITY:
        if name in origins:
            raise UsageError(f"{origins[name]}: {name} is set by ctrain for each node", "Remove it")


def multinode_environment(site: Site, software: Mapping[str, str]) -> dict[str, str]:
    """The site's variables of runs on several nodes, for an image with that software. Raises ConfigError."""
    chosen = {}
    for name, entry in site.env_multinode.items():
        if isinstance(entry, str):
            chosen[name] = entry
        elif not numbers(entry.since_nccl):
            problem = f"since_nccl must be a version of NCCL, not {entry.since_nccl!r}"
            raise ConfigError(f"site {site.name}: env_multinode.{name}: {problem}", 'As in: since_nccl: "2.27"')
        elif numbers(software.get("nccl", "")) >= numbers(entry.since_nccl):
            chosen[name] = entry.value
    return chosen


def unknown_conditions(site: Site, software: Mapping[str, str]) -> tuple[str, ...]:
    """Lines on variables of which nobody knows whether they are for the image."""
    if software.get("nccl"):
        return ()
    return tuple(
        f"{name}={entry.value} is for NCCL {entry.since_nccl} and newer; the image's is unknown: not set"
        for name, entry in site.env_multinode.items()
        if not isinstance(entry, str)
    )


def passed_names(env: Mapping[str, Optional[str]]) -> tuple[str, ...]:
    """The variables of --env without a value: the caller's is passed on, and is written nowhere."""
    names = tuple(name for name, value in env.items() if value is None)
    _check_names(names, UsageError, "--env")
    return names


def secret_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The variables whose values are secrets: by their names, or because the value is a URL with a password."""
    return tuple(name for name, value in environment.items() if _is_secret(name) or LOGIN.search(value))


def _is_secret(name: str) -> bool:
    return name not in NOT_SECRET and SECRET.search(name) is not None


def _caches(site: Site) -> dict[str, str]:
    """The directories for downloaded models, if the site has one for all jobs."""
    if not site.cache:
        return {}
    cache = expand(site.cache, f"site {site.name}: cache")
    return {"HF_HOME": f"{cache}/huggingface", "TORCH_HOME": f"{cache}/torch"}


def check_site_names(site: Site, key: str) -> None:
    """Check the names of a site's variables. Raises ConfigError."""
    _check_names(getattr(site, key), ConfigError, f"site {site.name}: {key}")


def _check_names(names: Iterable[str], error: type[CtrainError], source: str) -> None:
    """Check names, which are written into scripts without quotes: anything else would be shell code there."""
    for name in names:
        if not VARIABLE.fullmatch(name):
            raise error(f"{source}: invalid variable name {name!r}", "Use letters, digits and '_'")
        if name in IDENTITY:
            raise error(f"{source}: {name} is set by ctrain for each rank", "Remove it")


def _assigned(env: Mapping[str, Optional[str]]) -> dict[str, str]:
    for name, value in env.items():
        if not VARIABLE.fullmatch(name):
            text = name if value is None else f"{name}={value}"
            raise UsageError(f"--env {text!r} is not NAME=VALUE or NAME", "As in: --env NCCL_DEBUG=INFO")
    assigned = {name: value for name, value in env.items() if value is not None}
    _check_names(assigned, UsageError, "--env")
    return assigned

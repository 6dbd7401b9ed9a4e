"""A first site file: what this machine and its scheduler show, each value with where it comes from."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ctrain_runtime import schedulers
from ctrain_runtime.base import strict_yaml, time_limit
from ctrain_runtime.cluster.model import Cluster, Partition
from ctrain_runtime.doctor import fabric
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import EngineError, UsageError
from ctrain_runtime.job import NAME
from ctrain_runtime.run.targets import find_cluster
from ctrain_runtime.site.default_runs import choose_default
from ctrain_runtime.site.files import site_dirs, site_paths
from ctrain_runtime.site.layers import Level
from ctrain_runtime.site.select import SelectedSite

_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def make_profile(selected: SelectedSite, name: str = "") -> tuple[Path, str]:
    """The path and the text of a user's file for a new site, by default named like the cluster or this host.

    Raises UsageError for a name that is invalid or taken, and SchedulerError if the scheduler does not answer.
    """
    cluster, _ = find_cluster(schedulers.get(selected.site.scheduler), selected.site)
    name = name or re.sub(r"[^A-Za-z0-9_.-]", "-", cluster.name or socket.gethostname().partition(".")[0])
    if not NAME.fullmatch(name):
        raise UsageError(f"invalid name of a site: {name!r}", "Use letters, digits, '.', '_' and '-'")
    for existing in site_paths().get(name, {}).values():
        raise UsageError(f"site {name} already exists: {existing}", "Choose another name: ctrain site init NAME")
    return site_dirs()[Level.USER] / f"{name}.yaml", "".join(f"{line}\n" for line in _lines(name, selected, cluster))


def _lines(name: str, selected: SelectedSite, cluster: Cluster) -> Iterator[str]:
    site = selected.site
    yield f"# Written by `ctrain site init` on {socket.gethostname()}. All keys: ctrain help sites"
    yield strict_yaml.entry("name", name)
    yield strict_yaml.entry("description", f"cluster {name}" if cluster.partitions else f"machine {name}")
    yield strict_yaml.entry("scheduler", site.scheduler, f"site {site.name}: {selected.reason}")
    yield from _engine(schedulers.get(site.scheduler).programs)
    stores = os.environ.get("CTRAIN_STORE", "")
    yield (
        strict_yaml.entry("stores", [stores], "CTRAIN_STORE")
        if stores
        else "# stores: [DIR]    # where images are published"
    )
    yield strict_yaml.entry("runs", *choose_default())
    if cluster.partitions:
        mpi = [flavour for flavour in site.mpi if flavour in cluster.mpi]
        yield (
            strict_yaml.entry("mpi", mpi, f"of {', '.join(cluster.mpi)}")
            if mpi
            else f"# mpi: none of {', '.join(site.mpi)}"
        )
        yield f"partitions:    # as {site.scheduler} shows them; without `partition`, each run gets one that is free"
        yield from (f"  {strict_yaml.entry(part.name, _describe(part), _notes(part))}" for part in cluster.partitions)
    for adapter, state in fabric.adapters().items():
        yield f"# fabric: {adapter} {state}; NCCL finds it by itself, if not: env: {{NCCL_IB_HCA: {adapter}}}"
    for variable in filter(os.environ.get, _PROXIES):  # not the value, which may hold a password
        yield f"# env: {{{variable}: ...}}    # if nodes need the proxy that is set in this shell"


def _engine(programs: tuple[str, ...]) -> Iterator[str]:
    """The engine, and the criteria by which the site applies: more than those of the site that ctrain brings."""
    criteria: dict[str, list[str]] = {"commands": list(programs)} if programs else {}
    try:
        engine = find_engine()
    except EngineError:
        yield "# engine: {path: apptainer, version: 1.3.6, modules: []}    # none here: say what nodes have"
    else:
        yield f"# engine: {engine.name} {engine.version} on PATH here; nodes need it at the same path"
        criteria["paths"] = [engine.path]
    if criteria:
        yield strict_yaml.entry("detect", criteria, "the site applies where all of these exist")


def _describe(part: Partition) -> Mapping[str, Any]:
    known = {"gpus": part.gpus, "gpu_type": part.gpu_type, "arch": part.arch}
    limit = {} if part.time_limit is None else {"time_limit": time_limit.format_limit(part.time_limit)}
    return {"nodes": part.nodes, "cpus": part.cpus, **{key: value for key, value in known.items() if value}, **limit}


def _notes(part: Partition) -> str:
    return ", ".join(["the default"] * part.default + ["preemptible"] * part.preemptible)

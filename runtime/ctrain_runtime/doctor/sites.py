"""Checks sites: whether their files are valid, and whether the paths and programs of a site exist here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ctrain_runtime import schedulers
from ctrain_runtime.base import command
from ctrain_runtime.base.time_limit import parse_limit
from ctrain_runtime.doctor import Finding
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.plan.environment import check_site_names, multinode_environment
from ctrain_runtime.plan.make import absolute_patterns, check_address_suffix, check_gpu_order
from ctrain_runtime.plan.mounts import SQUASHFS, site_mounts
from ctrain_runtime.run.targets import describe_cluster
from ctrain_runtime.site.evidence import read_evidence
from ctrain_runtime.site.files import is_world_writable, read_site_file, site_paths
from ctrain_runtime.site.layers import Level
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import DEFAULT, SelectedSite, expand, load_site

_PATTERNS = ("host_libraries", "library_paths", "mpi_library_paths")


def check_files() -> Iterator[Finding]:
    """One finding per site: whether all its files, and those of the sites that it extends, are valid."""
    for name, paths in site_paths().items():
        subject = f"site {name}"
        writable = [path for path in paths.values() if is_world_writable(path)]
        try:
            load_site(name)
            for level, path in paths.items():
                read_evidence(read_site_file(path, level, Site))
        except CtrainError as error:
            yield Finding(subject, "fail", error.message, error.hint)
        else:
            for path in writable:
                yield Finding(subject, "fail", f"world-writable: {path}", f"Run: chmod o-w {path}")
            if not writable:
                yield Finding(subject, "ok", ", ".join(map(str, paths.values())))


def check_selection(selected: SelectedSite) -> Finding:
    """Which site applies here, and whether a file describes this very cluster."""
    site = selected.site
    text = f"{site.name} ({selected.reason})"
    is_described = any(layer.file and layer.level > Level.BUILT_IN for layer in selected.layers)
    if selected.explicit or is_described or site.detect.paths:
        return Finding("site", "ok", text)
    if not schedulers.get(site.scheduler).programs:
        hint = "On a cluster: load its scheduler's module, or choose a site: ctrain site list"
        return Finding("site", "ok", f"{text}: runs are processes of this machine", hint)
    return Finding("site", "warn", f"{text}: no file describes this cluster", "Write a first one: ctrain site init")


def check_site(selected: SelectedSite) -> Iterator[Finding]:
    """Whether this user has the programs and directories of a site on this machine."""
    site = selected.site
    yield from _check_programs(selected)
    yield from _check_forms(selected)
    if not site.stores:
        yield Finding("stores", "warn", f"site {site.name} has no stores", "Set `stores`, CTRAIN_STORE or --store DIR")
    for store in site.stores:
        yield _check_directory("stores", store, selected, os.R_OK | os.X_OK)
    yield _check_directory("runs", site.runs, selected, os.W_OK | os.X_OK, created=True)
    if site.image_cache:
        yield _check_directory("image_cache", site.image_cache, selected, os.R_OK | os.X_OK)
    if site.cache:
        yield _check_directory("cache", site.cache, selected, os.W_OK | os.X_OK)
    for name, path in site.datasets.items():
        key = f"datasets.{name}"
        if path.endswith(SQUASHFS):
            yield _check_exists(key, path, selected)
        else:
            yield _check_directory(key, path, selected, os.R_OK | os.X_OK, expanded=True)
    for mount in site.mounts:
        yield _check_mount(mount.partition(":")[0], selected)
    for key in site.trusted_keys:
        if "/" in key:  # otherwise a fingerprint
            yield _check_exists("trusted_keys", key, selected)


def _check_forms(selected: SelectedSite) -> Iterator[Finding]:
    """The values that a plan would refuse."""
    site = selected.site
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("partitions", lambda: describe_cluster(site)),
        ("interactive_time", lambda: parse_limit(site.interactive_time or "0")),
        ("gpu_order", lambda: check_gpu_order(site)),
        ("address_suffix", lambda: check_address_suffix(site)),
        ("mounts", lambda: site_mounts(site)),
        *((key, partial(absolute_patterns, site, key)) for key in _PATTERNS),
        *((key, partial(check_site_names, site, key)) for key in ("env", "env_multinode")),
        ("env_multinode", lambda: multinode_environment(site, {})),
    )
    for key, check in checks:
        try:
            check()
        except CtrainError as error:
            yield Finding(key, "fail", f"{_source(key, selected)}: {error.message}", error.hint)


def _check_programs(selected: SelectedSite) -> Iterator[Finding]:
    site = selected.site
    source = selected.sources["scheduler"]
    if site.scheduler not in schedulers.MODULES:
        text = f"{source}: unknown scheduler {site.scheduler!r}"
        yield Finding("scheduler", "fail", text, f"Schedulers: {', '.join(schedulers.MODULES)}")
        return
    programs = schedulers.get(site.scheduler).programs
    missing = [program for program in programs if not command.which(program)]
    if missing:
        hint = "Load the scheduler's module, or use --site local"
        yield Finding("scheduler", "fail", f"{site.scheduler}: not found on PATH: {', '.join(missing)}", hint)
    else:
        yield Finding("scheduler", "ok", ": ".join(filter(None, (site.scheduler, ", ".join(programs)))))


def _check_directory(
    key: str, text: str, selected: SelectedSite, access: int, *, created: bool = False, expanded: bool = False
) -> Finding:
    """`created`: ctrain creates the directory, so its nearest parent is checked. `expanded`: without variables."""
    source = _source(key, selected)
    try:
        path = Path(text if expanded else expand(text, source))
    except CtrainError as error:
        return Finding(key, "fail", error.message, error.hint)
    existing = next(filter(_exists, (path, *path.absolute().parents)), path) if created else path
    if not _exists(existing):
        problem = "directory not found"
    elif not existing.is_dir():
        problem = "not a directory"
    elif not os.access(existing, access):
        problem = "cannot be written to" if access & os.W_OK else "cannot be read"
    else:
        return Finding(key, "ok", str(path))
    return Finding(key, "fail", f"{existing}: {problem}", f"Set by {source}")


def _check_exists(key: str, path: str, selected: SelectedSite) -> Finding:
    if _exists(Path(path)):
        return Finding(key, "ok", path)
    return Finding(key, "fail", f"{path}: not found", f"Set by {_source(key, selected)}")


def _check_mount(path: str, selected: SelectedSite) -> Finding:
    """On a cluster, only the nodes need have it."""
    scheduler = selected.site.scheduler
    runs_here = scheduler not in schedulers.MODULES or not schedulers.get(scheduler).programs
    if runs_here or _exists(Path(path)):
        return _check_exists("mounts", path, selected)
    hint = f"Compute nodes must have it: set by {_source('mounts', selected)}"
    return Finding("mounts", "warn", f"{path}: not found on this machine", hint)


def _exists(path: Path) -> bool:
    return os.access(path, os.F_OK)  # Path.exists() raises where a parent may not be entered


def _source(key: str, selected: SelectedSite) -> str:
    source = selected.sources[key]
    return "the default" if source == DEFAULT else source

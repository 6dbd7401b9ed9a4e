"""Checks whether an image can run on this site: its MPI with the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from ctrain_runtime import facts, image
from ctrain_runtime.doctor import Finding
from ctrain_runtime.errors import CtrainError, EngineError
from ctrain_runtime.facts import Cluster
from ctrain_runtime.image import Image
from ctrain_runtime.run.targets import find_site_engine
from ctrain_runtime.site import SelectedSite, Site
from ctrain_runtime.store import open_stores


def check_image(reference: str, selected: SelectedSite, cluster: Cluster) -> Iterator[Finding]:
    """Whether the image exists and fits; `reference` is its name in a store, or a path."""
    try:
        stores = [] if image.is_path(reference) else open_stores(selected.store_dirs())
        found = image.find_any_arch((reference,), stores)
        image.check_size(found.path, found.manifest)
    except CtrainError as error:
        yield Finding("image", "fail", error.message, error.hint)
        return
    yield Finding("image", "ok", f"{found.manifest.name} {found.manifest.version} ({found.path})")
    yield from _check_layers(selected.site, found)
    yield _check_mpi(selected.site, cluster, found)


def _check_layers(site: Site, found: Image) -> Iterator[Finding]:
    """By starting a container, where this machine has the engine."""
    try:
        engine, _ = find_site_engine(site)
        ignored = facts.detect_facts(Cluster(), found, engine).ignores_layers
    except EngineError:
        return  # a finding of its own
    if ignored:
        hint = "Ask the administrators to set `enable overlay` in its configuration, or to publish a flat image"
        yield Finding("layers", "fail", f"{engine.name} does not mount the layers of the image", hint)


def _check_mpi(site: Site, cluster: Cluster, image: Image) -> Finding:
    """Whether the scheduler has a plugin that starts the ranks of the image's MPI."""
    mpi = image.manifest.software.get("mpi", "")
    if not mpi:
        return Finding("mpi", "ok", "the image has no MPI: use launcher env or torchrun")
    if not cluster.partitions:
        return Finding("mpi", "ok", f"{mpi} of the image: its mpirun starts the ranks of one machine")
    for flavour in site.mpi:
        if flavour in cluster.mpi:
            return Finding("mpi", "ok", f"{mpi} of the image, started by {site.scheduler} with {flavour}")
    wanted = " or ".join(site.mpi)
    text = f"{site.scheduler} has no MPI plugin {wanted} (available: {', '.join(cluster.mpi) or 'none'}) for {mpi}"
    return Finding("mpi", "warn", text, "Pass --launcher env, or gloo for Horovod; or ask the administrators for PMIx")

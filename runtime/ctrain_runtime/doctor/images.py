"""Checks whether an image can run on this site: its nodes, its engine, and its MPI with the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ctrain_runtime.cluster import facts, machine
from ctrain_runtime.cluster.groups import kinds
from ctrain_runtime.cluster.model import Cluster, Partition
from ctrain_runtime.doctor import Finding
from ctrain_runtime.errors import CtrainError, EngineError, SchedulerError
from ctrain_runtime.images import image
from ctrain_runtime.images.image import Image
from ctrain_runtime.plan import admission
from ctrain_runtime.plan.admission import NodeFacts
from ctrain_runtime.plan.mpi_start import FITS, OTHERWISE, fit, start_mpi
from ctrain_runtime.plan.size import JobFit, JobSize
from ctrain_runtime.run import select_image, site_engine
from ctrain_runtime.run.targets import find_nodes
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import SelectedSite

SEVERAL_NODES = 2


def check_image(reference: str, selected: SelectedSite, cluster: Cluster) -> Iterator[Finding]:
    """Whether the image that `--image` means exists, is trusted and fits."""
    try:
        selection, notes = select_image.select((reference,), selected, lambda _what, _progress: None, dry_run=True)
        if not selection.path.exists():
            yield Finding(
                "image", "warn", "; ".join(notes), f"Pull it by running it: ctrain run --image {reference} ..."
            )
            return
        if not selection.foreign:
            image.check_size(selection.path, selection.manifest)
    except CtrainError as error:
        yield Finding("image", "fail", error.message, error.hint)
        return
    name = f"{selection.manifest.name} {selection.manifest.version}".rstrip()
    yield Finding("image", "ok", "; ".join((f"{name} ({selection.path})", *notes)))
    yield _check_nodes(cluster, selection)
    yield from _check_layers(selected.site, selection)
    yield _check_mpi(selected.site, cluster, selection)


def _check_nodes(cluster: Cluster, chosen: Image) -> Finding:
    """By architecture, GPUs, driver and C library: of partitions; in a job, or without a cluster, of this machine."""
    needs_gpus = "cuda" in chosen.manifest.software
    if cluster.partitions and not cluster.allocation:
        nodes = [each for part in cluster.partitions for each in _nodes(part) if each.gpus or not needs_gpus]
    else:
        nodes = [find_nodes(JobFit(JobSize(1, 1, gpus_per_node=machine.count_gpus())))]
    problems = {one.name: admission.refusal(chosen.manifest, one) for one in nodes}
    fitting = [name for name, problem in problems.items() if not problem]
    reasons = dict.fromkeys(problem for problem in problems.values() if problem)
    if not fitting:
        return Finding("nodes", "fail", "; ".join(reasons) or "no partition has GPUs", "Find another: ctrain images")
    notes = [note for one in nodes if one.name in fitting for note in admission.notes(chosen.manifest, one)]
    return Finding("nodes", "ok", "; ".join((f"fits {', '.join(fitting)}", *notes, *reasons)))


def _nodes(part: Partition) -> Iterator[NodeFacts]:
    """What is known of each kind of a partition's nodes."""
    kinds_of_nodes = kinds(part)
    for one in kinds_of_nodes:
        nodes = admission.nodes_of(one, use_gpus=True)
        kind = ", ".join(filter(None, (*nodes.gpus, nodes.arch))) or "without GPUs"
        yield replace(nodes, name=f"{nodes.name} ({kind})") if len(kinds_of_nodes) > 1 else nodes


def _check_layers(site: Site, chosen: Image) -> Iterator[Finding]:
    """By starting a container, where this machine has the engine."""
    try:
        engine, _ = site_engine.find(site)
        ignored = facts.detect_facts(Cluster(), chosen, engine).ignores_layers
    except EngineError:
        return  # a finding of its own
    if ignored:
        hint = "Ask the administrators to let it mount them (ctrain help engines), or to publish a flat image"
        yield Finding("layers", "fail", f"{engine.name} does not mount the layers of the image", hint)


def _check_mpi(site: Site, cluster: Cluster, image: Image) -> Finding:
    """Whether the scheduler has a plugin that starts the ranks of the image's MPI."""
    mpi = image.manifest.software.get("mpi", "")
    if not mpi:
        return Finding("mpi", "ok", "the image has no MPI: use launcher env or torchrun")
    if not cluster.partitions:
        return Finding("mpi", "ok", f"{mpi} of the image: its mpirun starts the ranks of one machine")
    try:
        _, plugin = start_mpi(site, cluster, SEVERAL_NODES, image.manifest.software)
    except SchedulerError as error:
        return Finding("mpi", "warn", error.message, error.hint)
    text = f"{mpi} of the image, started by {site.scheduler} with {plugin}"
    if fit(plugin, image.manifest.software) == FITS:
        return Finding("mpi", "ok", text)
    return Finding("mpi", "warn", f"{text}, which it may not know: the preflight counts the ranks", OTHERWISE)

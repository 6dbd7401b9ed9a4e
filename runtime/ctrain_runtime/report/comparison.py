"""What differs between runs, and what more ranks have brought: the one place for the page, the text and `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.base.digest import short
from ctrain_runtime.base.time_limit import format_limit
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.plan.environment import COLLECTIVES_PREFIXES
from ctrain_runtime.plan.model import LaunchPlan, PlannedImage
from ctrain_runtime.report.subject import Subject
from ctrain_runtime.run.manifest import code_digests
from ctrain_runtime.run.record import Record
from ctrain_runtime.store import sbom

RATES = ("images_per_second", "tokens_per_second")
SIZES = {"nodes", "ranks", "GPUs per node", "ranks per node", "time limit"}  # settings that a study of scaling varies
OWN = {"CTRAIN_RUN_DIR", "CTRAIN_RUN", *COLLECTIVES_PREFIXES}  # variables that name the run itself
NONE = "-"

_digests = cache(code_digests)  # each table of a report asks


@dataclass(frozen=True)
class Scale:
    """One run of a study: its ranks, its rate, and that by the rate of the smallest run times as many ranks."""

    name: str
    ranks: int
    rate: float
    speedup: float
    efficiency: float


def settings(subject: Subject) -> dict[str, str]:
    """All that decided a run, in words."""
    return settings_of(subject.run.plan, subject.record, _digests(subject.run.path / run_files.CODE))


def settings_of(plan: LaunchPlan, record: Record, code: Mapping[str, str]) -> dict[str, str]:
    """The same of a run whose files of code have these digests."""
    size, image = plan.size, plan.image
    limit = "none" if size.time_limit is None else format_limit(size.time_limit)
    return {
        "command": " ".join(plan.program.command),
        **{f"parameter {name}": value for name, value in plan.program.parameters.items()},
        "image": f"{image.name} {image.version}".rstrip(),
        "image digest": short(image.digest),
        **{f"layer {number}": short(layer.digest) for number, layer in enumerate(image.layers, 1)},
        "commit": record.revision or NONE,
        **{f"code {name}": short(digest) for name, digest in code.items()},
        "data": record.data or NONE,
        "resumed from": record.resume or NONE,
        "site": plan.site,
        "partition": plan.placement.partition or NONE,
        "nodes": str(size.nodes),
        "ranks": str(size.world_size),
        "ranks per node": str(size.ranks_per_node),
        "GPUs per node": str(size.gpus_per_node),
        "launcher": f"{plan.program.launcher} {plan.program.mpi}".rstrip(),
        "time limit": limit,
        "engine": f"{plan.image.engine.name} {plan.image.engine.version}",
        **{f"env {name}": value for name, value in plan.environment.variables.items() if name not in OWN},
    }


def differing(subjects: Sequence[Subject]) -> list[tuple[str, ...]]:
    """The settings that are not the same in all runs: the name, then the value of each run."""
    return rows_that_differ([settings(subject) for subject in subjects])


def parameters(subjects: Sequence[Subject]) -> list[tuple[str, ...]]:
    """The parameters that are not the same in all runs, as of a sweep: the name, then the value of each run."""
    return rows_that_differ([subject.run.plan.program.parameters for subject in subjects])


def rows_that_differ(every: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Of values by name, those that are not the same in all: the name, then each value."""
    names = dict.fromkeys(name for each in every for name in each)
    rows = ((name, *(each.get(name, NONE) for each in every)) for name in names)
    return [row for row in rows if len(set(row[1:])) > 1]


def packages(subjects: Sequence[Subject]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The packages that are not the same in the images of all runs, layers of users included, as rows; and the runs
    whose image is not here any more, or has no list of them. Equal images are not opened."""
    images = [subject.run.plan.image for subject in subjects]
    if len({(image.digest, *(layer.digest for layer in image.layers)) for image in images}) == 1:
        return [], []
    listed = [_packages(image) for image in images]
    unknown = [subject.name for subject, each in zip(subjects, listed) if each is None]
    known = [each for each in listed if each is not None]
    names = sorted({name for each in known for name in each})
    rows = ((name, *("?" if each is None else each.get(name, NONE) for each in listed)) for name in names)
    return [row for row in rows if len({*row[1:]} - {"?"}) > 1], unknown


def _packages(image: PlannedImage) -> Optional[dict[str, str]]:
    try:
        versions = {name: version for (_, name), version in sbom.packages(Path(image.path)).items()}
    except CtrainError:
        return None
    for layer in image.layers:
        versions.update(layer.packages)
    return versions


def rate(subject: Subject) -> Optional[tuple[str, float]]:
    """The name and the median of its throughput: of all ranks, over the second half of its steps."""
    for key in RATES:
        curve = subject.metrics.curves.get(key)
        if curve:
            values = [value for part in curve.parts for _, value in part]
            values = sorted(values[len(values) // 2 :])
            if values and values[len(values) // 2] > 0:
                return key, values[len(values) // 2]
    return None


def scaling(subjects: Sequence[Subject]) -> list[Scale]:
    """The efficiency of runs of which only the size differs, beside the smallest; [] if anything else does."""
    names = {row[0] for row in differing(subjects)}
    rates = [rate(subject) for subject in subjects]
    sizes = {subject.record.world_size for subject in subjects}
    known = [(subject, rate_of_run) for subject, rate_of_run in zip(subjects, rates) if rate_of_run]
    if (
        not names <= SIZES
        or len(sizes) < 2
        or len(known) < len(subjects)
        or len({rate_of_run[0] for _, rate_of_run in known}) > 1
    ):
        return []
    known.sort(key=lambda each: each[0].record.world_size)
    smallest, (_, least) = known[0]
    return [
        Scale(
            subject.name,
            ranks := subject.record.world_size,
            rate_of_run[1],
            rate_of_run[1] / least,
            rate_of_run[1] / least / (ranks / smallest.record.world_size),
        )
        for subject, rate_of_run in known
    ]

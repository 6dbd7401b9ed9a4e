"""The image of a run: trusted by the site before anything of it runs, and examined if ctrain did not build it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import ConfigError, EngineError, ImageUnusable
from ctrain_runtime.images import image, trust
from ctrain_runtime.images.image import Image
from ctrain_runtime.plan import admission
from ctrain_runtime.plan.admission import NodeFacts
from ctrain_runtime.site.select import SelectedSite
from ctrain_runtime.store import notes as noted
from ctrain_runtime.store.store import open_stores

if TYPE_CHECKING:
    from ctrain_runtime.images.pull import Report

Notes = tuple[str, ...]


def select(
    references: tuple[str, ...], site: SelectedSite, report: Report, *, again: bool = False, dry_run: bool = False
) -> tuple[Image, Notes]:
    """The image for the first of `references` that exists, and notes.

    `again`: what a reference means now is used. A `dry_run` pulls nothing: the image's file may not exist, and nothing
    of it is known then. Raises ImageNotFound, ImageUnusable and all that pull() raises.
    """
    located, notes = _locate(references, site, report, again, dry_run)
    if not located.path.exists():
        return located, notes
    trust.require_trusted(located, site.site)
    if located.manifest.adopted:
        notes = (*notes, f"{located.manifest.reference} is untested: it was adopted, ctrain did not build it")
    if not located.foreign:
        notes = (*notes, *_noted(located))
    if located.foreign:
        located, contents = _examine(located, report)
        notes = (*notes, f"{located.manifest.name} is untested: ctrain did not build it; contents {contents}")
    return located, notes


def _noted(located: Image) -> Notes:
    """What users should know of a version since it was published; a note that is damaged is none against a run."""
    try:
        deprecation = noted.read_deprecation(located.path, located.manifest)
    except ConfigError as error:
        return (f"whether {located.manifest.reference} is deprecated is unknown: {error.message}",)
    return (f"{located.manifest.reference} {deprecation}",) if deprecation else ()


def admit(selected: Image, nodes: NodeFacts, site: SelectedSite) -> Notes:
    """Raise ImageUnusable, naming an image that fits, if the image cannot run on the nodes; notes, if it can."""
    manifest = selected.manifest
    problem = admission.refusal(manifest, nodes)
    if problem:
        published = (image.manifest for store in open_stores(site.store_dirs()) for image in store.images())
        other = admission.nearest(manifest, published, nodes)
        hint = f"Nearest image that fits: --image {other.reference}" if other else "Select another image or partition"
        raise ImageUnusable(f"image {f'{manifest.name} {manifest.version}'.rstrip()} does not fit: {problem}", hint)
    image.check(selected, nodes.arch)
    return admission.notes(manifest, nodes)


def _locate(
    references: tuple[str, ...], site: SelectedSite, report: Report, again: bool, dry_run: bool
) -> tuple[Image, Notes]:
    """The image, of which nothing has run yet, and notes on how a reference became it."""
    reference = references[0]
    trust.require_allowed(reference, site)
    if image.is_pulled(reference):
        from ctrain_runtime.run import pulled_image  # which loads a client of registries

        return pulled_image.locate(reference, site, report, again=again, dry_run=dry_run)
    if image.is_foreign(reference):
        from ctrain_runtime.images import foreign  # start-up is measured

        return foreign.locate(Path(reference), report), ()
    stores = [] if image.is_path(reference) else open_stores(site.store_dirs())
    located = image.find_any_arch(references, stores)
    return dataclasses.replace(located, path=located.path.absolute()), ()  # the run has another working directory


def _examine(located: Image, report: Report) -> tuple[Image, str]:
    """The image with its facts, and these as text."""
    from ctrain_runtime.images import foreign

    try:
        examined, problem = foreign.examine(located, find_engine(), report, as_root=os.geteuid() == 0)
    except EngineError as error:  # only the nodes have one
        return located, f"unknown: {error.message}"
    software = ", ".join(f"{name} {version}" for name, version in examined.manifest.software.items())
    return examined, f"unknown: {problem}" if problem else software or "unknown"

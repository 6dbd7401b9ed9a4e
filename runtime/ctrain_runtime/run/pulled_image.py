"""The image of a reference (docker://, oras://, library://): from a cache, else pulled into one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from ctrain_runtime.base.digest import short
from ctrain_runtime.base.user_cache import cache_dir
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import CtrainError, RegistryError
from ctrain_runtime.images import foreign, pull, remote
from ctrain_runtime.images.image import Image
from ctrain_runtime.images.pull import PulledImage, Report, ResolvedReference
from ctrain_runtime.registry.http_client import Unreachable
from ctrain_runtime.site.select import SelectedSite, expand

Notes = tuple[str, ...]


def locate(reference: str, site: SelectedSite, report: Report, *, again: bool, dry_run: bool) -> tuple[Image, Notes]:
    """The image of `reference` and notes: what it meant when it was pulled or, with `again`, what it means now.

    A `dry_run` pulls nothing: the image's file may not exist. Raises all that pull() raises.
    """
    own, shared = _caches(site)
    cached = pull.find_cached(reference, (own, shared))
    resolved, problem = _resolve(reference, optional=cached is not None and not again)
    current = pull.find_resolved(resolved, (own, shared)) if resolved else None
    if cached and not again:
        moved = f"{reference} has moved since it was pulled; --pull pulls what it means now"
        unknown = f"{reference} was pulled before; whether it has moved is unknown: {problem}"
        notes = (unknown,) if problem else (moved,) if resolved and current != cached else ()
        return _image(reference, cached, report), notes
    cache = writable_cache(site)
    if current and (dry_run or current.path.parent != cache):  # where it is, it cannot be given this name
        return _image(reference, current, report), ()
    if dry_run:
        digest = f" ({short(resolved.digest)})" if resolved else ""
        note = f"{reference}{digest} would be pulled into {cache}; until then nothing of it is known or checked"
        return foreign.not_pulled(reference, pull.link_path(cache, reference)), (note,)
    if not resolved and reference.startswith(pull.LIBRARY):  # the engine would wait without end, and verify nothing
        raise RegistryError(f"cannot pull {reference}: {problem}", "Check the host, the network and https_proxy")
    return _image(reference, pull.pull(reference, resolved, cache, find_engine(), report, again=again), report), ()


def writable_cache(site: SelectedSite) -> Path:
    """The directory that images are pulled into: the site's if this user may write to it. Raises ConfigError."""
    own, shared = _caches(site)
    return shared if os.access(shared, os.W_OK | os.X_OK) else own


def _caches(site: SelectedSite) -> tuple[Path, Path]:
    """The user's own cache and the site's, which may be the same."""
    own = cache_dir() / "images"
    shared = site.site.image_cache
    return own, Path(expand(shared, f"{site.sources['image_cache']}: image_cache")) if shared else own


def _resolve(reference: str, *, optional: bool) -> tuple[Optional[ResolvedReference], str]:
    """What `reference` means now, or why that is unknown. A refusal is raised, unless the answer is `optional`; without
    any answer the engine is left to pull from registries, to which it may know other ways."""
    if optional and ("@" in reference or (reference.startswith(pull.LIBRARY) and ":sha256." in reference)):
        return None, ""  # a digest never moves
    try:
        return remote.resolve(reference), ""
    except Unreachable as error:
        return None, error.message
    except CtrainError as error:
        if not optional:
            raise
        return None, error.message


def _image(reference: str, pulled: PulledImage, report: Report) -> Image:
    return foreign.locate(pulled.path, report, name=reference, digest=pulled.digest)

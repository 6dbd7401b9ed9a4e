"""The engine that a run is planned for: the one here, or as the site's file describes it."""

from __future__ import annotations

from dataclasses import replace

from ctrain_runtime.engines.apptainer import Engine, engine_at, find_engine
from ctrain_runtime.errors import EngineError
from ctrain_runtime.site.model import Site

ASSUMED = Engine("apptainer", "apptainer", "1.1.0")  # in a dry run without any: the oldest with all options


def find(site: Site, *, dry_run: bool = False) -> tuple[Engine, tuple[str, ...]]:
    """The engine of the site's nodes; for a dry run without any, an assumed one, which a note says.

    Raises EngineError without an engine here, unless the site's file has its path and version.
    """
    path, version = site.engine.path, site.engine.version
    if path and version:
        engine = Engine("apptainer" if "apptainer" in path else "singularity", path, version)
        return replace(engine, fakeroot=site.engine.fakeroot), ()
    try:
        engine = replace(engine_at(path), path=path) if path else find_engine()
        return replace(engine, fakeroot=site.engine.fakeroot), ()
    except EngineError as error:
        if dry_run:
            return ASSUMED, (f"no engine on this machine: planned for {ASSUMED.name} {ASSUMED.version}",)
        hint = "If only the nodes have it, set `engine` with its path and version in the site file"
        raise EngineError(error.message, f"{error.hint}. {hint}" if error.hint else hint) from error

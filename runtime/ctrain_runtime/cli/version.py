"""What `ctrain --version` prints: the version alone, which scripts compare; then what it was made of and runs with."""

from __future__ import annotations

import platform
import sys

from ctrain_runtime.base.version import commit, ctrain_version
from ctrain_runtime.engines.apptainer import builds, find_engine
from ctrain_runtime.errors import EngineError


def lines() -> list[str]:
    facts = {"commit": commit(), "python": f"{platform.python_version()} ({sys.executable})", "engine": _engine()}
    return [f"ctrain {ctrain_version() or 'unknown'}", *(f"{name}  {fact}" for name, fact in facts.items() if fact)]


def _engine() -> str:
    """The one on PATH, which is asked: the only program that `ctrain --version` starts, besides git in a checkout."""
    try:
        engine = find_engine()
    except EngineError as error:
        return error.message
    return f"{engine.name} {engine.version} ({engine.path})" + ("" if builds(engine) else ", which only runs images")

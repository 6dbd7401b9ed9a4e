"""What runs on nodes and inside images: static files, of which each run directory gets those that it needs.

Shell and Python's standard library alone. Scripts that are made for a run hold variables and calls of ctrain.bash,
which is all of bash/ in one file: a thousand ranks open it at once.
"""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.bash import fragment

FOLDER = Path(__file__).parent
PREFLIGHT = FOLDER / "preflight"  # copied, not imported: the host has no torch


def text(name: str) -> str:
    """A file of a run directory that is the same in every run."""
    if name != run_files.LIBRARY:
        return (FOLDER / Path(name).name).read_text(encoding="utf-8")
    parts = sorted((FOLDER / "bash").glob("*.bash"))
    return "\n\n".join(("# Functions of the scripts of a run.", *map(fragment, parts), ":")) + "\n"

"""Where runs are if no site file says so: one place per user, and not the home where the site has scratch."""

from __future__ import annotations

import os

from ctrain_runtime.base.text import user_name

_SCRATCH = "/scratch"


def default_runs() -> str:
    """The parent directory of runs, as the value of the key `runs`."""
    return choose_default()[0]


def choose_default() -> tuple[str, str]:
    """The same, and why."""
    if _is_writable(os.environ.get("SCRATCH", "")):
        return "$SCRATCH/ctrain", "SCRATCH is set"
    scratch = f"{_SCRATCH}/{os.environ.get('USER') or user_name(os.getuid())}"
    if _is_writable(scratch):
        return f"{_SCRATCH}/$USER/ctrain", f"{scratch} is writable"
    return "~/ctrain-runs", f"the home, for lack of SCRATCH and {_SCRATCH}/$USER; all nodes must share it"


def _is_writable(directory: str) -> bool:
    return bool(directory) and os.access(directory, os.W_OK | os.X_OK)

"""Locates the data directories `definitions/`, `examples/` and `docs/`: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.errors import CtrainError


def data_dir(name: str) -> Path:
    """Path of the data directory `name`: in the wheel a copy (setup.py), in a checkout at its top level."""
    package = Path(__file__).resolve().parent
    for root in (package / "share", package.parents[1]):
        if (root / name).is_dir():
            return root / name
    raise CtrainError(f"incomplete installation: directory {name}/ not found", "Reinstall ctrain")

"""Where the data folders `definitions/`, `examples/` and `docs/` are: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

from ctrain_runtime.errors import CtrainError


def folder(name: str) -> Path:
    """Path of the shared folder `name`. The wheel carries a copy (setup.py); a checkout has it at its top."""
    package = Path(__file__).resolve().parent
    for root in (package / "share", package.parents[1]):
        if (root / name).is_dir():
            return root / name
    raise CtrainError(f"this installation of ctrain has no folder {name}/", "Install ctrain again")

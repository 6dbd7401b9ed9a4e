"""The checkpoints of a run. Only rank 0 writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional

import torch
from example import is_restarted, resume_dir

KEPT_CHECKPOINTS = 2


def save_checkpoint(run_dir: Path, state: dict[str, Any]) -> Path:
    """Writes checkpoint/step-N.pt whole or not at all, and keeps the newest few."""
    directory = run_dir / "checkpoint"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{state['step']:08d}.pt"
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in _checkpoints(directory)[:-KEPT_CHECKPOINTS]:
        old.unlink()
    return path


def find_checkpoint(path: Path) -> Optional[Path]:
    """The checkpoint that path is, or the newest one of the checkpoint directory or run directory that it is."""
    if path.is_file():
        return path
    found = _checkpoints(path) or _checkpoints(path / "checkpoint")
    return found[-1] if found else None


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-*.pt"))


def load_checkpoint(device: torch.device) -> Optional[dict[str, Any]]:
    """The newest checkpoint of the run that `ctrain run --resume` names; None for a new run.

    Ends the program if that run has no checkpoint.
    """
    directory = resume_dir()
    if directory is None:
        return None
    path = find_checkpoint(directory)
    if path is None and is_restarted():
        return None
    if path is None:
        raise SystemExit(f"{directory} has no checkpoint to resume from")
    return torch.load(path, map_location=device, weights_only=True)

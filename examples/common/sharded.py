"""Checkpoints that another number of ranks can load, each its own part: torch.distributed.checkpoint.

`alone`: this rank reads or writes everything, without a process group.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any, Optional

import torch
import torch.distributed.checkpoint as dcp
from example import InputError, is_restarted

KEPT = 2
FACTS = "facts.json"
warnings.filterwarnings("ignore", "torch.distributed is disabled")  # what `alone` asks for


def checkpoints(directory: Path) -> list[Path]:
    """Oldest first. The last file that is written, .metadata, makes a checkpoint complete."""
    return sorted(path.parent for path in directory.glob("step-*/.metadata"))


def newest(directory: Path) -> Optional[Path]:
    """The last checkpoint; None if a run that is restarted has none. Raises InputError if another run has none."""
    found = checkpoints(directory)
    if not found and not is_restarted():
        raise InputError(f"{directory} has no checkpoint to resume from")
    return found[-1] if found else None


def save(directory: Path, state: dict[str, torch.Tensor], facts: dict[str, Any], rank: int, alone: bool) -> Path:
    """Writes directory/step-N, N from the facts, and removes old ones; returns its path."""
    path = directory / f"step-{facts['step']:08d}"
    if rank == 0:
        path.mkdir(parents=True, exist_ok=True)
        (path / FACTS).write_text(json.dumps(facts))
    if rank == 0 or not alone:
        dcp.save(state, checkpoint_id=path, no_dist=alone)
    for old in checkpoints(directory)[:-KEPT] if rank == 0 else ():
        shutil.rmtree(old)
    return path


def read_facts(path: Path) -> dict[str, Any]:
    return json.loads((path / FACTS).read_text())


def load(path: Path, state: dict[str, torch.Tensor], alone: bool) -> None:
    """Fills the tensors of `state` in place; it may have fewer than the checkpoint."""
    dcp.load(state, checkpoint_id=path, no_dist=alone)

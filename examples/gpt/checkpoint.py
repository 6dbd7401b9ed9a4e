"""Checkpoints that any strategy on any number of ranks can load: whole names, each rank's cut of the tensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Optional

import torch
import torch.distributed.checkpoint as dcp

KEPT = 2


def save(directory: Path, state: dict[str, torch.Tensor], known: dict[str, Any], rank: int, alone: bool) -> None:
    """Writes directory/step-N together with all ranks, or alone. Its last file, .metadata, makes it complete."""
    path = directory / f"step-{known['step']:08d}"
    if rank == 0:
        path.mkdir(parents=True, exist_ok=True)
        (path / "known.json").write_text(json.dumps(known))
    dcp.save(state, checkpoint_id=path, no_dist=alone)
    for old in _complete(directory)[:-KEPT] if rank == 0 else ():
        shutil.rmtree(old)


def newest(path: Path) -> Optional[Path]:
    """The newest checkpoint of a checkpoint directory or run directory; None without any."""
    return next(reversed(_complete(path) or _complete(path / "checkpoint")), None)


def _complete(directory: Path) -> list[Path]:
    return sorted(path.parent for path in directory.glob("step-*/.metadata"))

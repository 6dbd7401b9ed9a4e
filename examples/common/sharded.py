"""Checkpoints that another number of ranks can load, each its own part: torch.distributed.checkpoint.

`alone`: this rank reads or writes everything, without a process group.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ctrain_program import DIGESTS, digests_of_files, newest_whole, write_digests
from example import InputError, is_restarted

KEPT = 2
FACTS = "facts.json"
warnings.filterwarnings("ignore", "torch.distributed is disabled")  # what `alone` asks for


def checkpoints(directory: Path) -> list[Path]:
    """Oldest first. The last file that is written, .metadata, makes a checkpoint complete."""
    return sorted(path.parent for path in directory.glob("step-*/.metadata"))


def newest(directory: Path, rank: int = 0, alone: bool = True) -> Optional[Path]:
    """The last checkpoint that is not damaged, as rank 0 has it; None if a run that is restarted has none. Raises
    InputError if another run has none."""
    found = [newest_whole(checkpoints(directory)) if alone or rank == 0 else None]
    if not alone:
        dist.broadcast_object_list(found)
    if found[0] is None and not is_restarted():
        raise InputError(f"{directory} has no checkpoint to resume from")
    return found[0]


def save(directory: Path, state: dict[str, torch.Tensor], facts: dict[str, Any], rank: int, alone: bool) -> Path:
    """Writes directory/step-N, N from the facts, and removes old ones; returns its path."""
    path = directory / f"step-{facts['step']:08d}"
    if rank == 0:
        path.mkdir(parents=True, exist_ok=True)
        (path / FACTS).write_text(json.dumps(facts))
    if rank == 0 or not alone:
        dcp.save(state, checkpoint_id=path, no_dist=alone)
        _seal(path, rank, alone)
    for old in checkpoints(directory)[:-KEPT] if rank == 0 else ():
        shutil.rmtree(old)
        old.with_name(old.name + DIGESTS).unlink(missing_ok=True)
    return path


def _seal(path: Path, rank: int, alone: bool) -> None:
    """Each rank reads the files that it has written, and rank 0 those of all."""

    def is_own(file: Path) -> bool:
        owner = re.match(r"__(\d+)_", file.name)
        return alone or int(owner[1] if owner else 0) == rank

    digests = [digests_of_files(path, path.name, is_own)]
    if not alone:
        own, digests = digests[0], [""] * dist.get_world_size()
        dist.all_gather_object(digests, own)
    if rank == 0:
        write_digests(path, "".join(digests))


def read_facts(path: Path) -> dict[str, Any]:
    return json.loads((path / FACTS).read_text())


def load(path: Path, state: dict[str, torch.Tensor], alone: bool) -> None:
    """Fills the tensors of `state` in place; it may have fewer than the checkpoint."""
    dcp.load(state, checkpoint_id=path, no_dist=alone)

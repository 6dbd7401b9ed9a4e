"""The checkpoints of a run. Only rank 0 writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import ctrain_program
import torch


def save_checkpoint(state: dict[str, Any]) -> Path:
    """Writes checkpoint/step-N.pt of the run whole or not at all, with its digest, and keeps the newest two."""
    return ctrain_program.save_checkpoint(lambda path: torch.save(state, path), state["step"])


def load_checkpoint(device: torch.device) -> Optional[dict[str, Any]]:
    """The newest checkpoint of the run that `ctrain run --resume` names; None for a new run. Of a damaged one, the one
    before.

    Ends the program if that run has no checkpoint.
    """
    path = ctrain_program.checkpoint_to_resume("step-*.pt")
    return torch.load(path, map_location=device, weights_only=True) if path else None

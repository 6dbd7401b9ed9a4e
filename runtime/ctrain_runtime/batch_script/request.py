"""What the head of a batch script requests: the lines #SBATCH or #PBS before its first command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ctrain_runtime.batch_script import pbs_options, slurm_options
from ctrain_runtime.batch_script.model import Remark, Request

_DIRECTIVE = re.compile(r"#(SBATCH|PBS)(?:\s+(.*))?")
_SCHEDULERS = {"SBATCH": "slurm", "PBS": "pbs"}
_ADD = {"slurm": slurm_options.add, "pbs": pbs_options.add}


def read_request(text: str) -> Request:
    """The request of a script."""
    request = Request()
    for number, line, is_read in _lines(text):
        directive = _DIRECTIVE.fullmatch(line)
        if not directive:
            continue
        scheduler = _SCHEDULERS[directive[1]]
        request.scheduler = request.scheduler or scheduler
        try:
            words = shlex.split(directive[2] or "", comments=True)
        except ValueError:
            request.remarks.append(Remark(number, line, "its quotes do not match"))
            continue
        if not is_read:
            request.remarks.append(Remark(number, line, "the scheduler does not read what follows a command"))
        elif scheduler != request.scheduler:
            request.remarks.append(Remark(number, line, f"the lines above are for {request.scheduler}"))
        else:
            _ADD[scheduler](request, number, line, words)
    return request


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """The lines, each with its number, and whether it comes before the first command."""
    is_read = True
    for number, line in enumerate(text.split("\n"), 1):
        is_read = is_read and (not line.strip() or line.lstrip().startswith("#"))
        yield number, line.rstrip(), is_read

"""GPUs in the notations of Slurm: the Gres of nodes, the TRES of jobs."""

from __future__ import annotations

import re

_PARENTHESES = re.compile(r"\([^)]*\)")
_TRES_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,9})")


def parse_gres(text: str) -> tuple[int, str]:
    """(GPUs, their type), from gpu:a100:8(S:0-1), gpu:4, gpu:v100:2,nvme:1, gres/gpu:2, gres:gpu:a100:2 and (null)."""
    total, gpu_type = 0, ""
    for part in _PARENTHESES.sub("", text).split(","):
        name, *rest = re.sub(r"^gres[:/]", "", part).split(":")
        if name != "gpu":
            continue
        count = rest[-1] if rest else "1"  # --gres=gpu is one
        if re.fullmatch(r"[0-9]{1,9}", count):
            total += int(count)
            gpu_type = rest[0] if len(rest) > 1 else gpu_type
    return total, gpu_type


def parse_tres(text: str) -> int:
    """GPUs in a list of TRES, as in cpu=2,mem=16000M,node=2,billing=2,gres/gpu=16,gres/gpu:a100=16.

    Which of the last two are shown, is the site's choice (AccountingStorageTRES in man slurm.conf).
    """
    counts = [(gpu_type, int(number)) for gpu_type, number in _TRES_GPUS.findall(text)]
    totals = [number for gpu_type, number in counts if not gpu_type]
    return totals[0] if totals else sum(number for _, number in counts)

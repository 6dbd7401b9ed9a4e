"""The cores of each rank, where a site or a user lists them: as many entries as ranks, and as many threads as cores."""

from __future__ import annotations

import re
from typing import Optional

from ctrain_runtime.plan.model import LaunchPlan
from ctrain_runtime.site.model import Site

# PALS's list (ALCF, "Running Jobs"), Slurm's map_cpu and mask_cpu (man srun, --cpu-bind).
_LISTS = re.compile(r"(?P<how>(?:\w+,)*(?P<kind>list|map_cpu|mask_cpu):)(?P<entries>[0-9a-fA-Fx,:-]+)")
_SEPARATORS = {"list": ":", "map_cpu": ",", "mask_cpu": ","}


def fit(cpu_bind: str, ranks_per_node: int, *, one_task: bool = False) -> tuple[str, Optional[int]]:
    """A site's binding for that many ranks per node, and how many cores it gives each (None: it does not say).

    Of a longer list the first entries count: the sites' go with GPU 0, 1 ... A shorter one would put ranks on the same
    cores, and a task of all of them (`one_task`) on those of the first: "none" replaces it.
    """
    form = _LISTS.fullmatch(cpu_bind)
    if not form:
        return cpu_bind, None
    separator = _SEPARATORS[form["kind"]]
    entries = form["entries"].split(separator)
    if one_task or len(entries) < ranks_per_node:
        return "none", None
    used = entries[:ranks_per_node]
    return form["how"] + separator.join(used), min(_count(form["kind"], entry) for entry in used)


def note(plan: LaunchPlan, site: Site) -> str:
    """That ranks are not where the site's list, or its order of GPUs, would have them; "" if they are, or it has none.

    Started by torchrun, an example took 10 minutes on Frontier instead of 10 s (OLCF's user guide, PyTorch).
    """
    listed = bool(_LISTS.fullmatch(site.cpu_bind))
    if plan.program.launcher == "torchrun" and plan.ranks_per_task > 1 and (listed or plan.placement.gpu_order):
        return "ranks of torchrun are not bound to the cores next to their GPUs; --launcher env binds each"
    if not listed or plan.placement.cpu_bind != "none" or plan.ranks_per_task > 1:
        return ""
    fewer = f"lists fewer than {plan.size.ranks_per_node} per node"
    return f"ranks are not bound to cores: cpu_bind of site {site.name} {fewer}"


def _count(kind: str, entry: str) -> int:
    """The CPUs of an entry; at least one."""
    if kind == "mask_cpu":
        return max(1, bin(int(entry, 16)).count("1"))
    spans = (part.partition("-") for part in entry.split(",")) if kind == "list" else ()
    return max(1, sum(int(last or first) - int(first) + 1 for first, _, last in spans))

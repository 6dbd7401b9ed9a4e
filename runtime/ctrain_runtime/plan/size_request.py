"""What a run asks for: by its command line, else its job; and by options of the scheduler. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Optional

from ctrain_runtime.base.text import pluralize
from ctrain_runtime.base.time_limit import parse_limit
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Count, Job
from ctrain_runtime.plan.options import Options
from ctrain_runtime.plan.size import SizeRequest


def read_options(options: Iterable[str], short: Mapping[str, str]) -> dict[str, str]:
    """The values of options of the scheduler, by their long names; the last of each counts, as for the scheduler."""
    matches = (re.fullmatch(r"(?:--([a-z-]+)[=\s]|(-[A-Za-z]))(.*)", option, re.DOTALL) for option in options)
    return {match[1] or short.get(match[2], match[2]): match[3].strip() for match in matches if match}


def make_size_request(
    options: Options,
    job: Job,
    cluster: Cluster,
    ranks: Optional[int] = None,
    further: Mapping[str, str] = MappingProxyType({}),
) -> SizeRequest:
    """The values of the command line, else the job's; in an allocation, all of its nodes. `ranks` is how many its
    command would start in all, if that says so; `further` are options of the scheduler, which come after ctrain's own.
    Raises UsageError if the ranks cannot be spread evenly."""
    parse_limit(options.time or "0")  # also where it will not apply
    settings = {"partition": options.partition, **options.settings, **further}
    resources = job.resources
    nodes: Count = "auto" if cluster.allocation else resources.nodes
    nodes = nodes if options.nodes is None else options.nodes
    spare = options.spare_nodes
    if spare < 0:
        raise UsageError(f"--spare-nodes must be an integer of at least 0, not {spare}")
    per_node = resources.ranks_per_node if options.ranks_per_node is None else options.ranks_per_node
    if ranks and per_node == "auto":
        known = cluster.allocation.nodes - spare if cluster.allocation and nodes == "auto" else int(nodes)
        if known < 1 or ranks % known:
            problem = f"{pluralize(ranks, 'rank')} cannot be spread evenly over {pluralize(known, 'node')}"
            raise UsageError(problem, "Pass --nodes N and --ranks-per-node N")
        per_node = ranks // known
    return SizeRequest(
        nodes=nodes + spare if isinstance(nodes, int) else nodes,
        spare_nodes=spare,
        gpus_per_node=resources.gpus_per_node if options.gpus_per_node is None else options.gpus_per_node,
        ranks_per_node=per_node,
        partition=settings["partition"],
        time=options.time or resources.time,
        time_is_explicit=bool(options.time),
        account=settings.get("account", ""),
        qos=settings.get("qos", ""),
        features=_features(settings.get("constraint", "")),
        gpu_type=_gpu_type(settings.get("gres", "")),
        memory=_megabytes(settings.get("mem", "")),
        in_reservation="reservation" in settings,
        interactive=job.interactive,
    )


def _features(constraint: str) -> Optional[tuple[str, ...]]:
    """The features that a constraint joins by `and`, as schedulers write it; None for any other expression."""
    features = tuple(filter(None, re.split("[&:]", constraint)))
    return features if all(re.fullmatch(r"[\w.=+/-]+", feature) for feature in features) else None


def _gpu_type(gres: str) -> str:
    """The type of GPU that resources of a node name, as in gpu:a100:4,nvme:1; "" without one."""
    named = re.search(r"\bgpu:([^:,()]+(?=:[0-9])|[A-Za-z][^:,()]*)", gres)
    return named[1] if named else ""


def _megabytes(size: str) -> int:
    """Memory with a unit of schedulers, as in 64G or 64gb; 0 without one, for which it is not the same."""
    amount = re.fullmatch(r"([0-9]{1,9})([kmgt])b?", size.lower())
    return int(amount[1]) * 1024 ** "kmgt".index(amount[2]) >> 10 if amount else 0

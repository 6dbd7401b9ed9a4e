"""Facts of a Slurm cluster: its partitions, its MPI plugins, and the caller's allocation."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Optional

from ctrain_runtime.base import time_limit
from ctrain_runtime.base.text import user_name
from ctrain_runtime.cluster.groups import gpu_types, group, usual
from ctrain_runtime.cluster.model import MAINTENANCE, RESERVED, Access, Cluster, Limits, Node, NodeGroup, Partition
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.schedulers.slurm import allocation, client
from ctrain_runtime.schedulers.slurm.client import parse_gres

SHOW_NODES = ("scontrol", "--oneliner", "show", "node")
SHOW_PARTITIONS = ("scontrol", "--oneliner", "show", "partition")
SHOW_CONFIG = ("scontrol", "show", "config")
LIST_MPI = ("srun", "--mpi=list")
COMMANDS = ("sbatch", "scancel", "scontrol", "squeue", "srun")
SHOW_ACCOUNTING = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")
USER_FIELDS = "format=Cluster,DefaultAccount,Account,QOS,DefaultQOS,Partition,MaxWall,MaxTRES,GrpTRES"
SHOW_QOS = ("qos", "format=Name,Flags,MaxWall,MaxTRES,MaxTRESPerUser,GrpTRES")
TIMEOUT_SECONDS = 30
ACCOUNTING_TIMEOUT_SECONDS = 5

# States in which a node starts no job, but will: when an administrator acts, or a reservation ends (man sinfo, NODE
# STATE CODES). Of several the first is named. One that is powered down starts for a job.
UNAVAILABLE = {
    "MAINT": MAINTENANCE,
    **dict.fromkeys(("DRAIN", "DRAINED", "DRAINING"), "drained"),
    **dict.fromkeys(("DOWN", "NOT_RESPONDING"), "down"),
    **dict.fromkeys(("FAIL", "FAILING"), "failing"),
    "RESERVED": RESERVED,
    **dict.fromkeys(("UNKNOWN", "ERROR", "INVAL", "INVALID", "INVALID_REG"), "not registered"),
}
NOT_YET = "FUTURE"  # the state of nodes that no job can wait for

CLOSED = {"UP": "", "DRAIN": "drained"}  # of states of partitions; DOWN and INACTIVE are words already

MARKS = {"*": "NOT_RESPONDING", "$": "MAINT", "~": "POWERED_DOWN", "#": "POWERING_UP"}

# An idle node with one of these starts no other job now (man sinfo, NODE STATE CODES).
TAKEN = frozenset({"ALLOCATED", "COMPLETING", "MIXED", "PLANNED", "BLOCKED"})

_NODE_FIELDS = client.fields_pattern(
    *(
        "NodeName",
        "ActiveFeatures",
        "Arch",
        "CpuBind",
        "CPUEfctv",
        "CPUTot",
        "CoreSpecCount",
        "CoresPerSocket",
        "Gres",
        "MemSpecLimit",
        "Partitions",
    ),
    *("RealMemory", "Sockets", "State", "ThreadsPerCore"),
)
_PARTITION_FIELDS = client.fields_pattern(
    *(
        "PartitionName",
        "AllowAccounts",
        "AllowQos",
        "CpuBind",
        "Default",
        "DefMemPerCPU",
        "DefMemPerNode",
        "DenyAccounts",
        "DenyQos",
        "JobDefaults",
        "MaxCPUsPerNode",
        "MaxMemPerNode",
    ),
    *("MaxNodes", "MaxTime", "MinNodes", "PreemptMode", "PriorityTier", "QoS", "State"),
)


def read_cluster() -> Cluster:
    """The cluster as it is now. Raises SchedulerError if it does not answer."""
    client.require_commands(*COMMANDS)
    # In parallel: the commands wait for the controller.
    questions = (SHOW_NODES, SHOW_PARTITIONS, LIST_MPI)
    with ThreadPoolExecutor(len(questions) + 2) as pool:
        current = pool.submit(allocation.read_allocation)
        asked_config = pool.submit(_ask_config)
        nodes, partitions, mpi = pool.map(_ask, questions)
        config, clock_skew = asked_config.result()
        settings, all_nodes = parse_config(config), parse_nodes(nodes)
        parts = parse_partitions(partitions, all_nodes, settings)
        # The database is slower than the controller, and asked only if it matters.
        is_limited = bool({"limits", "safe"} & set(settings.get("AccountingStorageEnforce", "").split(",")))
        is_restricted = any(Access() != rule for part in parts for rule in (part.accounts, part.qos))
        limits = pool.submit(_ask_accounting, *SHOW_QOS) if is_limited else None
        user = _ask_user() if is_limited or is_restricted else ""
        account, qos = parse_user(user, settings.get("ClusterName", ""))
        return Cluster(
            partitions=tuple(part for part in parts if not part.closed),
            closed=tuple(part for part in parts if part.closed),
            members={
                part.name: frozenset(node.name for node in all_nodes if part.name in node.partitions) for part in parts
            },
            limits={**parse_qos(limits.result()), **parse_accounts(user, settings["ClusterName"])} if limits else {},
            mpi=parse_mpi_list(mpi),
            allocation=current.result(),
            can_select=True,
            memory_is_consumable="MEMORY" in settings.get("SelectTypeParameters", "").upper(),
            name=settings.get("ClusterName", ""),
            clock_skew=clock_skew,
            account=account,
            qos=qos,
        )


def has_unavailable_nodes(partition: str) -> bool:
    """Whether nodes of a partition start no jobs now, but will. Raises SchedulerError if Slurm does not answer."""
    return any(node.unavailable and partition in node.partitions for node in parse_nodes(_ask(SHOW_NODES)))


def read_gpus() -> tuple[str, ...]:
    """The types of the GPUs in partitions that are up; a partition's name where its GPUs have none.

    Raises SchedulerError if Slurm does not answer.
    """
    client.require_commands("scontrol")
    partitions = parse_partitions(_ask(SHOW_PARTITIONS), parse_nodes(_ask(SHOW_NODES)))
    return gpu_types(part for part in partitions if not part.closed)


def _ask(argv: Sequence[str]) -> str:
    hint = "Retry later, or run here with --site local"
    return client.query(argv, timeout=TIMEOUT_SECONDS, problem="Slurm does not answer", hint=hint)


def _ask_config() -> tuple[str, Optional[float]]:
    """The configuration, and how many seconds the controller's clock is ahead: the first line has its time in whole
    seconds as it answered (Slurm's source, _fill_ctld_conf)."""
    config = _ask(SHOW_CONFIG)
    stamp = re.match(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", config)
    return config, datetime.fromisoformat(stamp[1]).timestamp() + 0.5 - time.time() if stamp else None


def _ask_user() -> str:
    return _ask_accounting("user", user_name(os.getuid()), "withassoc", USER_FIELDS)


def _ask_accounting(*words: str) -> str:
    """What sacctmgr shows; "" where accounting is missing or does not answer: no run depends on it."""
    try:
        result = client.run((*SHOW_ACCOUNTING, *words), timeout=ACCOUNTING_TIMEOUT_SECONDS)
    except CtrainError:
        return ""
    return result.stdout if result.code == 0 else ""


def parse_user(text: str, cluster: str) -> tuple[str, str]:
    """The default account and QOS in the user's associations (USER_FIELDS), "" if unknown.

    Without a default, a job gets the QOS normal if the association has it (man sacctmgr, DefaultQOS).
    """
    for name, default, account, qos, default_qos, *_ in _rows(text, 5):
        if name in (cluster, "") and account == default:
            return account, default_qos or ("normal" if "normal" in qos.split(",") else "")
    return "", ""


def parse_accounts(text: str, cluster: str) -> dict[str, Limits]:
    """The limits of the user's accounts in their associations (USER_FIELDS): those that hold in all partitions."""
    rows = (row for row in _rows(text, 9) if row[0] == cluster and not row[5])
    return {f"account {row[2]}": _limits(row[6], *row[7:9]) for row in rows}


def parse_qos(text: str) -> dict[str, Limits]:
    """The limits of each QOS in the output of SHOW_QOS."""
    return {
        f"QOS {name}": replace(_limits(wall, *tres), overrides="OverPartQOS" in flags.split(","))
        for name, flags, wall, *tres in _rows(text, 6)
    }


def _rows(text: str, columns: int) -> list[list[str]]:
    """The fields of each line of sacctmgr that has at least so many."""
    return [fields for line in text.splitlines() if len(fields := line.split("|")) >= columns]


def _limits(wall: str, *tres: str) -> Limits:
    """Of several limits, as for a job and for all jobs of a user, the lowest holds for each job."""

    def lowest(name: str) -> Optional[int]:
        return min((int(count) for count in re.findall(rf"(?:^|,){name}=(\d{{1,9}})", ",".join(tres))), default=None)

    return Limits(lowest("node"), lowest("gres/gpu"), _time_limit(wall))


def parse_config(text: str) -> dict[str, str]:
    """The settings in the output of `scontrol show config`."""
    return dict(re.findall(r"(?m)^(\w+)[ \t]*= (.*?)[ \t]*$", text))


def parse_mpi_list(text: str) -> tuple[str, ...]:
    """The plugins in the output of `srun --mpi=list`, whose format differs between versions."""
    return tuple(dict.fromkeys(re.findall(r"\b(?:pmix(?:_v\d+)?|pmi2|none|cray_shasta|openmpi)\b", text)))


def parse_nodes(text: str) -> tuple[Node, ...]:
    """The nodes in the output of `scontrol show node`, without those that do not exist yet."""
    nodes = []
    for record in client.records(text, "NodeName"):
        fields = client.read_fields(record, _NODE_FIELDS)
        name = fields.pop("NodeName", "")
        node = _make_node(tuple(fields.items()))
        nodes += [replace(node, name=name)] if node else []
    return tuple(nodes)


@cache
def _make_node(items: tuple[tuple[str, str], ...]) -> Optional[Node]:
    """A node with these fields; None if it does not exist yet. Most nodes of a cluster have the same as others."""
    fields = dict(items)

    def count(name: str) -> int:
        return client.read_count(fields.get(name, "")) or 0

    cores = count("Sockets") * count("CoresPerSocket")
    # Where slurm.conf sets CPUs= to the number of cores, Slurm does not schedule hardware threads.
    threads = max(1, count("CPUTot") // cores) if cores else max(1, count("ThreadsPerCore"))
    cpus = count("CPUEfctv") or count("CPUTot") - count("CoreSpecCount") * threads
    gpus, gpu_type = parse_gres(fields.get("Gres", ""))
    states = parse_node_state(fields.get("State", "UNKNOWN"))
    if NOT_YET in states:
        return None
    unavailable = next((text for state, text in UNAVAILABLE.items() if state in states), "")
    return Node(
        partitions=tuple(filter(None, fields.get("Partitions", "").split(","))),
        idle="IDLE" in states and not unavailable and not states & TAKEN,
        cpus=max(0, cpus),
        threads_per_core=threads,
        memory=max(0, count("RealMemory") - count("MemSpecLimit")),
        gpus=gpus,
        gpu_type=gpu_type,
        arch=fields.get("Arch", ""),
        has_binding_policy="CpuBind" in fields,
        features=frozenset(_names(fields.get("ActiveFeatures", ""))),
        unavailable=unavailable,
    )


def parse_node_state(text: str) -> frozenset[str]:
    """The base state and the flags of a node, from IDLE+DRAIN, DOWN*, MIXED+PLANNED, idle~ ..."""
    states = set()
    for word in text.upper().split("+"):
        name = word.rstrip("*~#!%$@^-")
        states.add(name)
        states.update(MARKS[mark] for mark in word[len(name) :] if mark in MARKS)
    # A node of a cloud that is powered off does not respond, and starts for the job.
    return frozenset(states - {"NOT_RESPONDING"} if states & {"POWERED_DOWN", "POWERING_UP"} else states)


def parse_partitions(
    text: str, nodes: Iterable[Node], settings: Optional[Mapping[str, str]] = None
) -> tuple[Partition, ...]:
    """The partitions in the output of `scontrol show partition`; `settings` are the cluster's.

    Partitions that are closed to the caller's groups are not in that output (man scontrol, --all).
    """
    members: dict[str, list[Node]] = {}
    for node in nodes:
        for name in node.partitions:
            members.setdefault(name, []).append(node)
    records = [client.read_fields(record, _PARTITION_FIELDS) for record in client.records(text, "PartitionName")]
    highest_tier = max((client.read_count(fields.get("PriorityTier", "")) or 0 for fields in records), default=0)
    return tuple(
        _make_partition(fields, members.get(fields["PartitionName"], []), settings or {}, highest_tier)
        for fields in records
    )


def _make_partition(
    fields: dict[str, str], nodes: Sequence[Node], settings: Mapping[str, str], highest_tier: int
) -> Partition:
    part = Partition(
        name=fields["PartitionName"],
        default=fields.get("Default") == "YES",
        nodes=0,
        cpus=0,
        gpus=0,
        time_limit=_time_limit(fields.get("MaxTime", "")),
        min_nodes=client.read_count(fields.get("MinNodes", "")) or 1,
        max_nodes=client.read_count(fields.get("MaxNodes", "")),
        closed=CLOSED.get(fields.get("State", ""), fields.get("State", "").lower() or "closed"),
        own_qos=next(iter(_names(fields.get("QoS", ""))), ""),
        has_memory_default=_has_memory_default(settings) or _has_memory_default(fields),
        cpu_bind=_cpu_bind(fields, nodes, settings),
        preemptible=_is_preemptible(fields, settings, highest_tier),
        accounts=Access(_names(fields.get("AllowAccounts", "")), _names(fields.get("DenyAccounts", ""))),
        qos=Access(_names(fields.get("AllowQos", "")), _names(fields.get("DenyQos", ""))),
    )
    return usual(part, [_limit(one, fields) for one in group(nodes)])


def _limit(one: NodeGroup, fields: Mapping[str, str]) -> NodeGroup:
    """A group with what jobs of the partition may use of a node."""
    cpus, memory = (
        _at_most(fields.get(f"Max{name}PerNode", ""), of) for name, of in (("CPUs", one.cpus), ("Mem", one.memory))
    )
    return replace(one, cpus=cpus, memory=memory)


def _is_preemptible(fields: Mapping[str, str], settings: Mapping[str, str], highest_tier: int) -> bool:
    """Whether jobs of partitions with a higher tier preempt those of this one (man slurm.conf, PreemptType)."""
    tier = client.read_count(fields.get("PriorityTier", "")) or 0
    by_partition = settings.get("PreemptType", "") == "preempt/partition_prio"
    return by_partition and fields.get("PreemptMode", "OFF") != "OFF" and tier < highest_tier


def _names(text: str) -> tuple[str, ...]:
    """The names of a list; () for all of them."""
    return () if text in ("", "ALL", "(null)", "N/A") else tuple(text.split(","))


def _cpu_bind(fields: Mapping[str, str], nodes: Sequence[Node], settings: Mapping[str, str]) -> str:
    """Ranks are bound to cores if Slurm can and its administrators have set no other policy.

    Without the plugin srun may refuse the option; CpuBind of nodes and partitions is the site's default (man
    slurm.conf, TaskPlugin and CpuBind).
    """
    has_policy = "CpuBind" in fields or any(node.has_binding_policy for node in nodes)
    return "cores" if "affinity" in settings.get("TaskPlugin", "") and not has_policy else ""


def _at_most(limit: str, value: int) -> int:
    number = client.read_count(limit)
    return value if number is None else min(value, number)


def _time_limit(text: str) -> Optional[int]:
    try:
        return time_limit.parse_limit(text)
    except CtrainError:
        return None  # no version is known to print another form; the controller still checks the limit


def _has_memory_default(fields: Mapping[str, str]) -> bool:
    """Whether slurm.conf or a partition has DefMemPerCPU, DefMemPerNode or, in JobDefaults, DefMemPerGPU."""
    sizes = (client.read_count(fields.get(name, "")) for name in ("DefMemPerCPU", "DefMemPerNode"))
    return any(sizes) or "DefMemPerGPU=" in fields.get("JobDefaults", "")

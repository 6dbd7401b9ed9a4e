"""The nodes of a partition in groups of one shape, and which of them a job is sized for. Pure.

A partition may have one CPU node among GPU nodes, or V100 beside A100. A job has GPUs of one type, on nodes of one
architecture, and as many ranks on each of them; any node that has at least what the job asks for takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ctrain_runtime.base.text import pluralize
from ctrain_runtime.cluster.model import Node, NodeGroup, Partition
from ctrain_runtime.gpus import identify
from ctrain_runtime.job import Count

DESCRIBED = 5  # kinds of nodes that are named, at most

Kind = tuple[object, ...]


def group(nodes: Iterable[Node]) -> tuple[NodeGroup, ...]:
    """Nodes of one shape together, in the order of their first ones."""
    alike: dict[Kind, list[Node]] = {}
    nodes = tuple(nodes)
    archs = {node.arch for node in nodes} - {""}
    arch = archs.pop() if len(archs) == 1 else ""  # that of nodes which have never started, too
    for node in nodes:
        shape = (node.cpus, node.gpus, node.gpu_type, node.threads_per_core, _rounded(node.memory), node.arch or arch)
        alike.setdefault((*shape, node.features), []).append(node)
    return tuple(_group(members, arch) for members in alike.values())


def _rounded(memory: int) -> int:
    """Memory down to a part of about 1/16: nodes measure theirs themselves, and a few MB are no other shape."""
    digits = max(10, memory.bit_length() - 4)
    return memory >> digits << digits


def _group(members: Sequence[Node], arch: str) -> NodeGroup:
    one, unavailable = members[0], tuple(node.unavailable for node in members if node.unavailable)
    return NodeGroup(
        cpus=one.cpus,
        gpus=one.gpus,
        gpu_type=one.gpu_type,
        threads_per_core=one.threads_per_core,
        memory=min(node.memory for node in members),
        arch=one.arch or arch,
        features=one.features,
        names=tuple(node.name for node in members),
        nodes=len(members) - len(unavailable),
        idle=sum(node.idle for node in members),
        unavailable=unavailable,
    )


def change_nodes(part: Partition, change: Callable[[NodeGroup], NodeGroup]) -> Partition:
    """The partition with the same change of all its nodes: of their CPUs, or GPUs."""
    own = change(NodeGroup(part.cpus, part.gpus, threads_per_core=part.threads_per_core))
    groups, others = (tuple(map(change, some)) for some in (part.groups, part.others))
    part = replace(part, cpus=own.cpus, gpus=own.gpus, threads_per_core=own.threads_per_core)
    return replace(part, groups=groups, others=others)


def usual(part: Partition, groups: Sequence[NodeGroup]) -> Partition:
    """The partition with these nodes, as far as those go that a job gets which asks for nothing."""
    return restrict(part, choose(groups, 0, "auto"), groups)


def restrict(part: Partition, chosen: Sequence[NodeGroup], everything: Sequence[NodeGroup]) -> Partition:
    """The partition as far as the groups `chosen` go."""

    def least(name: str) -> int:
        return min((getattr(one, name) for one in chosen), default=0)

    taken = set(chosen)
    types, archs = {gpu_type(one) for one in chosen if one.gpus}, {one.arch for one in chosen}
    return replace(
        part,
        nodes=sum(one.nodes for one in chosen),
        idle=sum(one.idle for one in chosen),
        unavailable=tuple(chain.from_iterable(one.unavailable for one in chosen)),
        cpus=least("cpus"),
        gpus=least("gpus"),
        gpu_type=types.pop() if len(types) == 1 else "",
        memory=least("memory"),
        threads_per_core=max((one.threads_per_core for one in chosen), default=1),
        arch=archs.pop() if len(archs) == 1 else "",
        groups=tuple(chosen),
        others=tuple(one for one in everything if one not in taken),
    )


def kinds(part: Partition) -> tuple[Partition, ...]:
    """The partition as far as each kind of its nodes goes, the usual one first."""
    if not part.others:
        return (part,)
    groups_of: dict[Kind, list[NodeGroup]] = {}
    for one in (*part.groups, *part.others):
        groups_of.setdefault(kind(one, uses_gpus=True), []).append(one)
    first, *rest = (restrict(part, members, ()) for members in groups_of.values())
    return replace(first, gpu_type=part.gpu_type), *rest


@dataclass(frozen=True)
class _Option:
    """Groups that a job can be spread over. `usual` is how good the shape is that it would be sized for, and how much
    there is of exactly that."""

    groups: tuple[NodeGroup, ...]
    usual: tuple[int, int] = (-2, 0)

    @property
    def existing(self) -> int:
        return sum(one.existing for one in self.groups)


def choose(
    groups: Iterable[NodeGroup], nodes: int, gpus: Count, *, prefers_gpus: bool = True, by_memory: bool = True
) -> tuple[NodeGroup, ...]:
    """Of groups whose nodes can take a job, those of one kind that it is sized for; () without any.

    Of the kinds with enough nodes, which exist: with GPUs, unless the job prefers none; with enough that it need not
    wait for; the most GPUs, or nodes. What is idle does not count, so that the same command does the same tomorrow.
    GPUs of several types make a kind only where those of none are enough.
    """
    groups, wants = tuple(groups), prefers_gpus and gpus != 0

    def rank(option: _Option) -> tuple[bool, bool, bool, int]:
        usable = sum(one.nodes for one in option.groups)
        has_gpus = any(one.gpus for one in option.groups)
        return option.existing >= nodes, has_gpus == wants, usable >= nodes, _size(option.groups, gpus)

    def best(name: Callable[[NodeGroup], Kind]) -> _Option:
        kinds: dict[Kind, list[NodeGroup]] = {}
        for one in groups:
            kinds.setdefault(name(one), []).append(one)
        spread = (_spread(members, nodes, gpus, by_memory=by_memory) for members in kinds.values())
        return max(spread, key=rank, default=_Option(()))

    alike = best(lambda one: kind(one, uses_gpus=gpus != 0))
    mixed = alike if alike.existing >= nodes else best(lambda one: (one.arch, bool(one.gpus) and gpus != 0))
    return (mixed if mixed.existing >= nodes else alike).groups


def _spread(members: Sequence[NodeGroup], nodes: int, gpus: Count, *, by_memory: bool) -> _Option:
    """The groups of a kind whose nodes have at least the usual shape, if those are enough; else all."""

    def shape(one: NodeGroup) -> tuple[int, int, int]:
        """GPUs count where the job takes all, and where it asks for none: it leaves nodes with GPUs to others."""
        of_gpus = one.gpus if gpus == "auto" else -bool(one.gpus) if gpus == 0 else 0
        return of_gpus, one.cpus, _rounded(one.memory) if by_memory else 0

    shapes: dict[tuple[int, int, int], list[NodeGroup]] = {}
    for one in members:
        shapes.setdefault(shape(one), []).append(one)
    options = [_Option(tuple(members))]
    for least, alike in shapes.items():
        larger = (of for own, of in shapes.items() if all(has >= asked for has, asked in zip(own, least)))
        usual = (least[0] if gpus == 0 else 0, _size(alike, gpus))
        options.append(_Option(tuple(chain.from_iterable(larger)), usual))
    return max(options, key=lambda option: (option.existing >= nodes, option.usual, option.existing))


def _size(groups: Iterable[NodeGroup], gpus: Count) -> int:
    return sum(one.existing * (max(1, one.gpus) if gpus != 0 else 1) for one in groups)


def kind(one: NodeGroup, *, uses_gpus: bool) -> Kind:
    """What must be the same on all nodes of a job."""
    return (one.arch, bool(one.gpus), gpu_type(one)) if uses_gpus else (one.arch,)


def gpu_type(one: NodeGroup) -> str:
    """The type of a group's GPUs: the scheduler's, else a feature that names a model; "" if unknown."""
    if one.gpu_type or not one.gpus:
        return one.gpu_type
    return next((feature for feature in sorted(one.features) if identify(feature).model), "")


def gpu_types(partitions: Iterable[Partition]) -> tuple[str, ...]:
    """The types of the GPUs of all nodes; a partition's name where its GPUs have none."""
    types = (gpu_type(one) or part.name for part in partitions for one in (*part.groups, *part.others) if one.gpus)
    return tuple(dict.fromkeys(types))


def describe(groups: Iterable[NodeGroup], everything: Sequence[NodeGroup]) -> str:
    """What some nodes of a partition are, as in `20 nodes with 4 GPUs (v100), 1 node without GPUs`; with their
    architecture, CPUs or memory, too, where those of `everything` differ in that and not in their GPUs."""
    further: tuple[Callable[[NodeGroup], str], ...] = (
        lambda one: one.arch,
        lambda one: pluralize(one.cpus, "CPU"),
        lambda one: f"{_rounded(one.memory) >> 10} GB",
    )
    shapes = {(one.gpus, gpu_type(one)) for one in everything}
    differs = [
        read for read in further if len({(one.gpus, gpu_type(one), read(one)) for one in everything}) > len(shapes)
    ]
    counts: dict[str, int] = {}
    for one in groups:
        details = ", ".join(filter(None, (gpu_type(one), *(read(one) for read in differs))))
        text = f"with {pluralize(one.gpus, 'GPU')}" if one.gpus else "without GPUs"
        text += f" ({details})" if details else ""
        counts[text] = counts.get(text, 0) + one.existing
    texts = [f"{pluralize(count, 'node')} {text}" for text, count in counts.items()]
    return ", ".join((*texts[:DESCRIBED], *(["..."] if len(texts) > DESCRIBED else [])))

"""A rank's part of the GPT: cut while the model is on the meta device, which has shapes but no memory, then filled;
the norm of its gradient; and what a checkpoint has of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from gpt_model import GPT
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from zero import Zero

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names


def styles(sequence_parallel: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the parts of a block, and those of the model at its ends, are shared.

    Megatron-LM (Shoeybi et al., 2019): heads and the wide layer are cut by columns, the layers after them by rows. What
    lies between is the same on all ranks, or is cut along the sequence (Korthikanti et al., 2022).
    """
    between, norm = (Shard(1), SequenceParallel()) if sequence_parallel else (Replicate(), None)
    block = {
        "attention": PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate()),
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        **{name: ColwiseParallel(input_layouts=between) for name in ("gate", "up")},
        **{name: RowwiseParallel(output_layouts=between) for name in ("attention.output", "down")},
    }
    # Along the width, so that any number of characters will do.
    ends = {
        "tokens": ColwiseParallel(output_layouts=between),
        "positions": ColwiseParallel(output_layouts=Shard(0) if norm else Replicate()),
        "head": RowwiseParallel(input_layouts=between),
    }
    return (block | {"norm1": norm, "norm2": norm}, ends | {"norm": norm}) if norm else (block, ends)


def share(module: nn.Module, mesh: DeviceMesh, styles: dict[str, Any]) -> None:
    parts = dict(module.named_modules())
    parallelize_module(module, mesh, {name: style for name, style in styles.items() if name in parts})


def cut(model: GPT, mesh: DeviceMesh, shard: bool, config: Any) -> None:
    """By the rank's place in a mesh of pipeline stages, data-parallel ranks (which share everything if `shard`: FSDP)
    and ranks that share layers. `config` has `bf16` and `sequence_parallel`."""
    stages = mesh["pp"].size()
    if stages > 1:
        model.keep_stage(mesh["pp"].get_local_rank(), stages)
    if mesh["tp"].size() > 1:
        of_block, of_ends = styles(config.sequence_parallel)
        share(model, mesh["tp"], of_ends)
        for block in model.blocks.values():
            share(block, mesh["tp"], of_block)
    # Of all but a rank's shard; sums over ranks stay in fp32.
    precision = MixedPrecisionPolicy(torch.bfloat16 if config.bf16 else None, reduce_dtype=torch.float32)
    for module in (*model.blocks.values(), model) if shard else ():
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=stages == 1, mp_policy=precision)


@torch.no_grad()
def fill(
    model: GPT,
    first_value: Callable[[str, torch.Size], torch.Tensor],
    whole: Callable[[nn.Parameter], AbstractContextManager],
) -> None:
    """Gives a part its first values, of one whole parameter after the other; `whole` makes that of ZeRO 3 whole."""
    for name, parameter in model.named_parameters():
        with whole(parameter):
            value = first_value(name, parameter.shape).to(parameter.device)
            if isinstance(parameter, DTensor):
                value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
            parameter.copy_(value)


def is_matrix(parameter: nn.Parameter) -> bool:
    return len(getattr(parameter, "ds_shape", parameter.shape)) > 1  # ZeRO 3 keeps the shape of the whole there


def alike(module: nn.Module) -> list[list[nn.Parameter]]:
    """Groups that decay alike, and that operations on many tensors accept: all plain, or all of one DeviceMesh."""
    groups = defaultdict(list)
    for parameter in module.parameters():
        groups[getattr(parameter, "device_mesh", None), is_matrix(parameter)].append(parameter)
    return list(groups.values())


def clip(model: nn.Module, largest: float, stages: Any) -> torch.Tensor:
    """Clips (0: does not) by the norm of the whole model's gradient, of which a rank may hold a part; returns it.
    `stages`: the group of a pipeline."""
    groups = alike(model)
    norms = [nn.utils.get_total_norm([parameter.grad for parameter in group]) for group in groups]
    square = sum((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).square() for norm in norms)
    if stages:
        torch.distributed.all_reduce(square, group=stages)
    for group in groups if largest else ():
        nn.utils.clip_grads_with_norm_(group, largest, square.sqrt())
    return square.sqrt()


def state_of(model: GPT, optimizer: Any, zero: Zero | None) -> dict[str, torch.Tensor]:
    """What a checkpoint holds, by its name in the whole model: tensors to save, or to load into."""
    inner = optimizer.optimizer if zero else optimizer
    flat = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # ZeRO 3's parameters
    for parameter in flat or [parameter for group in inner.param_groups for parameter in group["params"]]:
        empty = {moment: torch.zeros_like(parameter) for moment in MOMENTS}  # as before the first step
        empty["step"] = torch.zeros((), device=parameter.device) if isinstance(inner, torch.optim.AdamW) else 0
        inner.state[parameter] = empty | inner.state[parameter]
    named = dict(model.named_parameters())
    if zero:
        return zero.state(optimizer, named, MOMENTS)
    moments = {f"{moment}.{name}": inner.state[p][moment] for name, p in named.items() for moment in MOMENTS}
    return moments | {name: p.detach() for name, p in named.items()}


def restore(model: GPT, optimizer: Any, zero: Zero | None, state: dict[str, torch.Tensor], step: int) -> None:
    """After tensors of `state` were loaded: takes over those that are not its own, and the optimizer's step."""
    if zero:
        zero.restore(state, dict(model.named_parameters()), MOMENTS)
    for values in (optimizer.optimizer if zero else optimizer).state.values():
        values["step"] = values["step"] * 0 + step  # a number, or a tensor

"""DeepSpeed's ZeRO, of the stage that a strategy names: zero1, zero2 or zero3."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from swap import prepare_offload
from torch import nn


class Zero:
    """`config` has `strategy`, `offload`, `clip`, `bf16`; `model` is on the meta device."""

    def __init__(
        self, config: Any, device: torch.device, model: nn.Module, micro_batch: int, micro_batches: int
    ) -> None:
        os.environ.setdefault("DS_ACCELERATOR", device.type)
        import deepspeed

        deepspeed.logger.setLevel("WARNING")
        self.deepspeed, self.utils, self.stage = deepspeed, deepspeed.utils, int(config.strategy[-1])
        self.offload, sizes = config.offload, [*map(torch.numel, model.parameters())]
        zero = {"stage": self.stage, "reduce_bucket_size": min(sum(sizes), 25_000_000)}
        if self.offload != "none":
            target = {"device": self.offload, "nvme_path": prepare_offload(self.offload)}
            pinned = {"buffer_size": max(sizes)}  # by default 1 GB in all
            zero |= {"offload_optimizer": target} | ({"offload_param": target | pinned} if self.stage == 3 else {})
        self.keys = {"gradient_clipping": config.clip, "bf16": {"enabled": config.bf16}, "zero_optimization": zero}
        self.keys |= {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": micro_batches}

    def make(self, build: Callable[[], nn.Module], model: nn.Module, device: torch.device) -> nn.Module:
        """The model with memory; in stage 3 built anew, each parameter cut as soon as it exists."""
        if self.stage < 3:
            return model.to_empty(device=device)
        with self.deepspeed.zero.Init(config_dict_or_path=self.keys):
            return build()

    def whole(self, parameter: nn.Parameter) -> AbstractContextManager:
        """Where one of stage 3 is whole, on all ranks; afterwards each keeps its part of what rank 0 has."""
        if self.stage < 3:
            return nullcontext()
        return self.deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, lr: float, betas: tuple[float, float]) -> Any:
        """DeepSpeed's engine; `optimizer` has the groups."""
        if self.offload != "none":
            optimizer = self.deepspeed.ops.adam.DeepSpeedCPUAdam(optimizer.param_groups, lr=lr, betas=betas)
        return self.deepspeed.initialize(model=model, optimizer=optimizer, config=self.keys)[0]

    def state(
        self, optimizer: Any, named: dict[str, nn.Parameter], moments: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        """Whole tensors, by their names in a checkpoint."""
        if self.stage < 3:  # DeepSpeed 0.19.8 forgets all groups but the first
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()
        get = self.utils.safe_get_full_optimizer_state
        state = {f"{moment}.{name}": get(p, moment).clone() for name, p in named.items() for moment in moments}
        return state | {name: self.utils.safe_get_full_fp32_param(p).clone() for name, p in named.items()}

    def restore(self, state: dict[str, torch.Tensor], named: dict[str, nn.Parameter], moments: tuple[str, ...]) -> None:
        """Takes over the tensors of such a state."""
        for name, parameter in named.items():
            with self.whole(parameter):
                parameter.data.copy_(state[name])
            self.utils.safe_set_full_fp32_param(parameter, state[name])
            for moment in moments:
                self.utils.safe_set_full_optimizer_state(parameter, state[f"{moment}.{name}"], moment)

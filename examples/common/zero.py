"""DeepSpeed's ZeRO, of the stage that a strategy names: zero1, zero2 or zero3."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from example import InputError
from swap import prepare_offload
from torch import nn

TILE = re.compile(r"\.linears\.(\d+)\.0(?=\.)")  # in names of parameters: TiledLinear cuts a layer by its outputs


def whole_layers(named: dict[str, nn.Parameter]) -> dict[str, list[nn.Parameter]]:
    """The parameters of a model by their names in the whole one: each alone, or its tiles."""
    whole = defaultdict(list)
    for name, parameter in named.items():
        whole[TILE.sub("", name)].append(parameter)
    return whole


class Zero:
    """`config` has `strategy`, `offload`, `tiles`, `clip`, `bf16` and a Shape; `model` is on the meta device."""

    def __init__(
        self, config: Any, device: torch.device, model: nn.Module, micro_batch: int, micro_batches: int
    ) -> None:
        os.environ.setdefault("DS_ACCELERATOR", device.type)
        import deepspeed

        deepspeed.logger.setLevel("WARNING")
        self.deepspeed, self.utils, self.stage = deepspeed, deepspeed.utils, int(config.strategy[-1])
        self.offload, sizes = config.offload, [*map(torch.numel, model.parameters())]
        self.tiles = config.tiles
        if config.width % self.tiles or config.inner % self.tiles:
            raise InputError(f"tiles={self.tiles} must divide width={config.width} and ffn={config.inner}")
        zero = {"stage": self.stage, "reduce_bucket_size": min(sum(sizes), 25_000_000)}
        if self.tiles > 1:  # one at a time: by default, a billion numbers stay or come ahead of their use
            limits = ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")
            zero |= {f"stage3_{limit}": 0 for limit in limits}
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
        tiled = partial(self.deepspeed.zero.TiledLinear, out_splits=self.tiles)
        with self.deepspeed.zero.Init(config_dict_or_path=self.keys):
            return build(wide_layer=tiled if self.tiles > 1 else nn.Linear)

    def of_tiles(self, value: Callable[[str, torch.Size], torch.Tensor]) -> Callable[[str, torch.Size], torch.Tensor]:
        """`value` makes a whole parameter of its name and shape; the result makes a tile, too."""

        def of_tile(name: str, shape: torch.Size) -> torch.Tensor:
            if not (tile := TILE.search(name)):
                return value(name, shape)
            whole = torch.Size((shape[0] * self.tiles, *shape[1:]))
            return value(TILE.sub("", name), whole).chunk(self.tiles)[int(tile[1])]

        return of_tile

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
        get, weight = self.utils.safe_get_full_optimizer_state, self.utils.safe_get_full_fp32_param
        whole = whole_layers(named)
        state = {
            f"{moment}.{name}": torch.cat([get(p, moment) for p in whole[name]]) for name in whole for moment in moments
        }
        return state | {name: torch.cat([weight(p) for p in tiles]) for name, tiles in whole.items()}

    def restore(self, state: dict[str, torch.Tensor], named: dict[str, nn.Parameter], moments: tuple[str, ...]) -> None:
        """Takes over the tensors of such a state."""
        for name, tiles in whole_layers(named).items():
            for number, tile in enumerate(tiles):
                parts = {key: state[key].chunk(len(tiles))[number] for key in (name, *(f"{m}.{name}" for m in moments))}
                with self.whole(tile):
                    tile.data.copy_(parts[name])
                self.utils.safe_set_full_fp32_param(tile, parts[name])
                for moment in moments:
                    self.utils.safe_set_full_optimizer_state(tile, parts[f"{moment}.{name}"], moment)

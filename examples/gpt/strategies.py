"""How ranks share the work of a step. Whatever the strategy, all take the same batch and report the same loss."""

from __future__ import annotations

import os
from collections import defaultdict

import torch
from config import Config
from example import InputError, World
from gpt_model import GPT, cross_entropy
from swap import prepare_offload
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names
BETAS = (0.9, 0.95)
# Megatron-LM (Shoeybi et al., 2019): heads and the wide layer are cut by columns, the layers after them by rows.
TENSOR_PARALLEL = {
    "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
    **{name: ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value", "up")},
    **{name: RowwiseParallel() for name in ("attention.output", "down")},
}


def alike(module: nn.Module) -> list[list[nn.Parameter]]:
    """Groups that decay alike, and that operations on many tensors accept: all plain, or all of one DeviceMesh."""
    groups = defaultdict(list)
    for parameter in module.parameters():
        groups[getattr(parameter, "device_mesh", None), parameter.ndim > 1].append(parameter)
    return list(groups.values())


class Strategy:
    """One rank's part of the model and of each batch."""

    def __init__(self, config: Config, world: World, model: GPT) -> None:
        self.config, self.world, self.name, size = config, world, config.strategy, world.size
        self.zero = self.name.startswith("zero")
        self.stages, tp = {"tp": (1, size), "pp": (size, 1), "3d": (config.pp, config.tp)}.get(self.name, (1, 1))
        if (self.name == "single" and size > 1) or size % (self.stages * tp) or config.layers < self.stages:
            layout = f"pp={self.stages}, tp={tp}, layers={config.layers}"
            raise InputError(f"strategy={self.name} with {layout}: not on {size} ranks")
        if config.heads % tp:
            raise InputError(f"heads={config.heads} must be a multiple of tp={tp}")
        self.data_ranks, self.data_rank, self.copies = size // (self.stages * tp), world.rank, size // self.stages
        share, rest = divmod(config.batch, self.data_ranks)
        if rest or share < self.stages:
            least = f"{self.data_ranks} data-parallel ranks, with at least {self.stages} for each"
            raise InputError(f"batch={config.batch} must be a multiple of {least}")
        self.micro_batch = config.micro_batch_of(share, self.stages)
        self.micro_batches = share // self.micro_batch
        self.model = self.module = model.to(world.device)
        model.bf16 &= not self.zero and self.name not in ("fsdp", "3d")  # whose weights are bf16 where they multiply
        if self.name in ("fsdp", "tp", "pp", "3d"):
            self._cut(tp)
        decay = config.weight_decay  # of matrices, not of biases and scales
        groups = [{"params": group, "weight_decay": decay * (group[0].ndim > 1)} for group in alike(model)]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=BETAS, fused=True)
        if self.name == "ddp":
            self.module = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        elif self.name == "horovod":
            import horovod.torch as hvd

            self.hvd = hvd
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            self.optimizer = hvd.DistributedOptimizer(
                self.optimizer, model.named_parameters(), backward_passes_per_step=self.micro_batches
            )
        elif self.zero:
            self._start_deepspeed(groups)

    def _cut(self, tp: int) -> None:
        """Leaves this rank's part of the model, by its place in a mesh whose last neighbours share layers."""
        shape = (self.stages, self.data_ranks, tp)
        mesh = init_device_mesh(self.world.device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
        mesh["dp", "tp"]._flatten()  # so that norms need one all-reduce
        self.data_rank, stage = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
        self.first, self.last, self.pp_group = stage == 0, stage == self.stages - 1, mesh["pp"].get_group()
        if self.stages > 1:
            self.model.keep_stage(stage, self.stages)
        for block in self.model.blocks.values() if tp > 1 else ():
            parallelize_module(block, mesh["tp"], TENSOR_PARALLEL)
        precision = MixedPrecisionPolicy(torch.bfloat16 if self.config.bf16 else None)  # of all but a rank's shard
        for module in (*self.model.blocks.values(), self.model) if self.name in ("fsdp", "3d") else ():
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=self.stages == 1, mp_policy=precision)
        if self.stages > 1:
            part = PipelineStage(self.model, stage, self.stages, self.world.device, group=self.pp_group)
            schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[self.config.schedule]
            self.pipeline = schedule(part, self.micro_batches, loss_fn=cross_entropy)

    def _start_deepspeed(self, groups: list[dict]) -> None:
        os.environ.setdefault("DS_ACCELERATOR", self.world.device.type)
        import deepspeed

        deepspeed.logger.setLevel("WARNING")
        config, self.deepspeed, sizes = self.config, deepspeed, [*map(torch.numel, self.model.parameters())]
        zero = {"stage": int(self.name[-1]), "reduce_bucket_size": min(sum(sizes), 25_000_000)}
        if config.offload != "none":
            target = {"device": config.offload, "nvme_path": prepare_offload(config.offload)}
            pinned = {"buffer_size": max(sizes)}  # by default 1 GB in all
            zero |= {"offload_optimizer": target} | ({"offload_param": target | pinned} if self.name == "zero3" else {})
            self.optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(groups, lr=config.lr, betas=BETAS)
        keys = {"gradient_clipping": config.clip, "bf16": {"enabled": config.bf16}, "zero_optimization": zero}
        keys |= {"train_micro_batch_size_per_gpu": self.micro_batch, "gradient_accumulation_steps": self.micro_batches}
        self.module, *_ = deepspeed.initialize(model=self.model, optimizer=self.optimizer, config=keys)
        self.optimizer = self.module.optimizer

    def step(self, batch: torch.Tensor, lr: float) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Trains on this rank's share of the batch: the rank's part of the mean loss, and the norm of the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        share = batch.chunk(self.data_ranks)[self.data_rank].to(self.world.device)
        loss = (self._pipeline if self.stages > 1 else self._accumulate)(share[:, :-1], share[:, 1:])
        if self.name == "horovod":
            self.optimizer.synchronize()
            norm = self._clip()
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
        elif self.zero:  # it has stepped in its last backward pass
            norm = self.module.get_global_grad_norm()
        else:
            norm = self._clip()
            self.optimizer.step()
        keep = {"set_to_none": False} if self.name == "ddp" else {}  # whose gradients are views of its buckets
        self.optimizer.zero_grad(**keep)
        return loss / self.copies, norm

    def _accumulate(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        total, size = torch.zeros((), device=self.world.device), self.micro_batch
        for number, (x, y) in enumerate(zip(inputs.split(size), targets.split(size)), 1):
            if self.name == "ddp":  # gradients are exchanged once
                self.module.require_backward_grad_sync = number == self.micro_batches
            loss = cross_entropy(self.module(x), y)
            total += loss.detach() / self.micro_batches
            if self.zero:
                self.module.backward(loss)
                self.module.step()
            else:
                (loss / self.micro_batches).backward()
        return total

    def _pipeline(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        ends = {"target": targets, "losses": losses} if self.last else {}
        self.pipeline.step(*([inputs] if self.first else []), **ends)
        return torch.stack(losses).mean().detach() if self.last else torch.zeros((), device=self.world.device)

    def _clip(self) -> torch.Tensor:
        """By the norm of the whole model's gradient, of which this rank may hold a part; returns it."""
        groups = alike(self.model)
        norms = [nn.utils.get_total_norm([parameter.grad for parameter in group]) for group in groups]
        square = sum((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).square() for norm in norms)
        if self.stages > 1:
            torch.distributed.all_reduce(square, group=self.pp_group)
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, self.config.clip, square.sqrt())
        return square.sqrt()

    def sum_over_ranks(self, values: torch.Tensor) -> list[float]:
        if self.name == "horovod":
            values = self.hvd.allreduce(values, op=self.hvd.Sum)
        elif self.world.size > 1:
            torch.distributed.all_reduce(values)
        return values.tolist()

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, by its name in the whole model: tensors to save, or to load into."""
        inner = self.optimizer.optimizer if self.zero else self.optimizer
        flat = getattr(self.optimizer, "fp32_partitioned_groups_flat", None)  # ZeRO 3's parameters
        for parameter in flat or [parameter for group in inner.param_groups for parameter in group["params"]]:
            empty = {moment: torch.zeros_like(parameter) for moment in MOMENTS}  # as before the first step
            empty["step"] = torch.zeros((), device=parameter.device) if isinstance(inner, torch.optim.AdamW) else 0
            inner.state[parameter] = empty | inner.state[parameter]
        named = dict(self.model.named_parameters())
        if not self.zero:
            moments = {f"{moment}.{name}": inner.state[p][moment] for name, p in named.items() for moment in MOMENTS}
            return moments | {name: p.detach() for name, p in named.items()}
        if not flat:  # DeepSpeed 0.19.8 forgets all groups but the first
            self.optimizer._hp_optimizer_states_linked = False
            self.optimizer._lazy_init_hp_params_optimizer_state()
        get, utils = self.deepspeed.utils.safe_get_full_optimizer_state, self.deepspeed.utils
        state = {f"{moment}.{name}": get(p, moment).clone() for name, p in named.items() for moment in MOMENTS}
        return state | {name: utils.safe_get_full_fp32_param(p).clone() for name, p in named.items()}

    def restore(self, state: dict[str, torch.Tensor], step: int) -> None:
        """After tensors of `state` were loaded: takes over those that are not its own, and the optimizer's step."""
        for name, parameter in self.model.named_parameters() if self.zero else ():
            with self.deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(state[name])
            self.deepspeed.utils.safe_set_full_fp32_param(parameter, state[name])
            for moment in MOMENTS:
                self.deepspeed.utils.safe_set_full_optimizer_state(parameter, state[f"{moment}.{name}"], moment)
        inner = self.optimizer.optimizer if self.zero else self.optimizer
        for values in inner.state.values():
            values["step"] = values["step"] * 0 + step  # a number, or a tensor

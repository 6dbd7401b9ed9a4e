"""How ranks share the work of a step. Whatever the strategy, all take the same batch and report the same loss."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from config import Config, ConfigError
from example import World
from model import GPT, cross_entropy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's names
BETAS = (0.9, 0.95)
# Megatron-LM (Shoeybi et al., 2019): heads and the wide layer are cut by columns, the layers after them by rows.
TENSOR_PARALLEL = {
    "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
    **{name: ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value", "up")},
    **{name: RowwiseParallel() for name in ("attention.output", "down")},
}


def by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Operations on many tensors at once want all of them plain, or all of one DeviceMesh."""
    groups = defaultdict(list)
    for parameter in parameters:
        groups[getattr(parameter, "device_mesh", None)].append(parameter)
    return list(groups.values())


class Strategy:
    """One rank's part of the model and of each batch."""

    def __init__(self, config: Config, world: World, model: GPT) -> None:
        self.config, self.world, self.name = config, world, config.strategy
        size = world.size
        self.stages, tp = {"tp": (1, size), "pp": (size, 1), "3d": (config.pp, config.tp)}.get(self.name, (1, 1))
        self.data_ranks, self.data_rank, self.copies = size // (self.stages * tp), world.rank, size // self.stages
        self._check(tp)
        self.micro_batches = config.batch // (self.data_ranks * config.micro_batch)
        self.model = self.module = model.to(world.device)
        if self.name in ("fsdp", "tp", "pp", "3d"):
            self._cut(tp)
        decayed, plain = ([p for p in model.parameters() if (p.ndim > 1) is matrix] for matrix in (True, False))
        groups = [{"params": group, "weight_decay": config.weight_decay} for group in by_mesh(decayed)]
        groups += [{"params": group, "weight_decay": 0.0} for group in by_mesh(plain)]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=BETAS)
        if self.name == "ddp":
            devices = [world.device] if world.device.type == "cuda" else None
            self.module = nn.parallel.DistributedDataParallel(model, device_ids=devices)
        elif self.name == "horovod":
            import horovod.torch as hvd

            self.hvd = hvd
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            passes = self.micro_batches
            self.optimizer = hvd.DistributedOptimizer(
                self.optimizer, model.named_parameters(), backward_passes_per_step=passes
            )
        elif self.name.startswith("zero"):
            self._start_deepspeed(groups)

    def _check(self, tp: int) -> None:
        config, size = self.config, self.world.size
        if self.name == "single" and size > 1:
            raise ConfigError(f"strategy=single trains on one rank, not on {size}")
        if size % (self.stages * tp) or config.layers < self.stages or config.heads % tp:
            raise ConfigError(
                f"pp={self.stages} x tp={tp} must divide {size} ranks; layers={config.layers} must be at least pp, and "
                f"heads={config.heads} a multiple of tp"
            )
        if config.batch % (self.data_ranks * config.micro_batch):
            share = f"{self.data_ranks} (data-parallel ranks) x micro_batch={config.micro_batch}"
            raise ConfigError(f"batch={config.batch} must be a multiple of {share}")

    def _cut(self, tp: int) -> None:
        """Leaves this rank's part of the model, by its place in a mesh whose last neighbours share layers."""
        shape = (self.stages, self.data_ranks, tp)
        mesh = init_device_mesh(self.world.device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
        self.data_rank, stage = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
        self.first, self.last, self.pp_group = stage == 0, stage == self.stages - 1, mesh["pp"].get_group()
        if self.stages > 1:
            self.model.keep_stage(stage, self.stages)
        for block in self.model.blocks.values() if tp > 1 else ():
            parallelize_module(block, mesh["tp"], TENSOR_PARALLEL)
        # A pipeline stage stays whole between its micro-batches.
        for module in (*self.model.blocks.values(), self.model) if self.name in ("fsdp", "3d") else ():
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=self.stages == 1)
        if self.stages > 1:
            part = PipelineStage(self.model, stage, self.stages, self.world.device, group=self.pp_group)
            schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[self.config.schedule]
            self.pipeline = schedule(part, self.micro_batches, loss_fn=cross_entropy)

    def _start_deepspeed(self, groups: list[dict]) -> None:
        os.environ.setdefault("DS_ACCELERATOR", self.world.device.type)
        import deepspeed

        deepspeed.logger.setLevel("WARNING")
        config, zero = self.config, {"stage": int(self.name[-1])}
        if config.offload != "none":
            target = {"device": config.offload} | ({"nvme_path": config.nvme} if config.offload == "nvme" else {})
            zero |= {"offload_optimizer": target} | ({"offload_param": target} if zero["stage"] == 3 else {})
            self.optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(groups, lr=config.lr, betas=BETAS)
        settings = {
            "train_micro_batch_size_per_gpu": config.micro_batch,
            "gradient_accumulation_steps": self.micro_batches,
            "gradient_clipping": config.clip,
            "zero_optimization": zero,
        }
        self.module, *_ = deepspeed.initialize(model=self.model, optimizer=self.optimizer, config=settings)
        self.optimizer = self.module.optimizer

    def step(self, batch: torch.Tensor, lr: float) -> torch.Tensor:
        """Trains on this rank's share of the batch; the rank's part of the mean loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        share = batch.chunk(self.data_ranks)[self.data_rank].to(self.world.device)
        loss = (self._pipeline if self.stages > 1 else self._accumulate)(share[:, :-1], share[:, 1:])
        if self.name == "horovod":
            self.optimizer.synchronize()
            self._clip()
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
        elif not self.name.startswith("zero"):  # whose step follows each backward pass
            self._clip()
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss / self.copies

    def _accumulate(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        total, size = torch.zeros((), device=self.world.device), self.config.micro_batch
        for number, (x, y) in enumerate(zip(inputs.split(size), targets.split(size))):
            last = number == self.micro_batches - 1  # gradients are exchanged once
            if self.name == "ddp":
                self.module.require_backward_grad_sync = last
            elif self.name == "fsdp":
                self.module.set_requires_gradient_sync(last)
            loss = cross_entropy(self.module(x), y)
            total += loss.detach() / self.micro_batches
            if self.name.startswith("zero"):
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

    def _clip(self) -> None:
        """By the norm of the whole model's gradient, of which this rank may hold a part."""
        groups = by_mesh(self.model.parameters())
        norms = [get_total_norm([parameter.grad for parameter in group]) for group in groups]
        square = sum((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).square() for norm in norms)
        if self.stages > 1:
            dist.all_reduce(square, group=self.pp_group)
        for group in groups:
            clip_grads_with_norm_(group, self.config.clip, square.sqrt())

    def sums(self, values: torch.Tensor) -> list[float]:
        """Over all ranks."""
        if self.name == "horovod":
            values = self.hvd.allreduce(values, op=self.hvd.Sum)
        elif self.world.size > 1:
            dist.all_reduce(values)
        return values.tolist()

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, by its name in the whole model: tensors to save, or to load into."""
        named = dict(self.model.named_parameters())
        if self.name.startswith("zero"):  # whole tensors, gathered one by one
            from deepspeed.utils import safe_get_full_fp32_param as weights
            from deepspeed.utils import safe_get_full_optimizer_state as moments

            return {name: weights(p).clone() for name, p in named.items()} | {
                f"{moment}.{name}": moments(p, moment).clone() for name, p in named.items() for moment in MOMENTS
            }
        for parameter in named.values():  # which AdamW makes in its first step
            empty = {moment: torch.zeros_like(parameter) for moment in MOMENTS} | {"step": torch.zeros(())}
            self.optimizer.state[parameter] = empty | self.optimizer.state[parameter]
        moments = {f"{m}.{name}": self.optimizer.state[p][m] for name, p in named.items() for m in MOMENTS}
        return {name: p.detach() for name, p in named.items()} | moments

    def restore(self, state: dict[str, torch.Tensor], step: int) -> None:
        """After tensors of `state` were loaded: takes over those that are not its own, and the optimizer's step."""
        optimizer = self.optimizer
        if self.name.startswith("zero"):
            from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

            optimizer = optimizer.optimizer
            for name, parameter in self.model.named_parameters():
                safe_set_full_fp32_param(parameter, state[name])
                for moment in MOMENTS:
                    safe_set_full_optimizer_state(parameter, state[f"{moment}.{name}"], moment)
        for values in optimizer.state.values():
            values["step"] = values["step"] * 0 + step  # a number, or a tensor

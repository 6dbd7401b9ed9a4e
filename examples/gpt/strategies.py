"""How ranks share the work of a step. Whatever the strategy, all take the same batch and report the same loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from config import Config
from example import InputError, World
from gpt_model import GPT, cross_entropy
from gpt_parts import alike, clip, cut, fill, is_matrix, restore, state_of
from pretrained import first_values
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from zero import Zero

BETAS = (0.9, 0.95)


class Strategy:
    """One rank's part of the model and of each batch.

    The model is cut while its parameters have shapes, but no memory (the meta device): no rank ever holds all of it.
    """

    def __init__(self, config: Config, world: World, vocabulary: int) -> None:
        self.config, self.world, self.name, size = config, world, config.strategy, world.size
        self.stages, tp = {"tp": (1, size), "pp": (size, 1), "3d": (config.pp, config.tp)}.get(self.name, (1, 1))
        if (self.name == "single" and size > 1) or size % (self.stages * tp) or config.layers < self.stages:
            layout = f"pp={self.stages}, tp={tp}, layers={config.layers}"
            raise InputError(f"strategy={self.name} with {layout}: not on {size} ranks")
        config.check(tp, config.sequence_parallel)
        self.data_ranks, self.data_rank, self.copies = size // (self.stages * tp), world.rank, size // self.stages
        self.zero, self.pp_group = None, None
        share, rest = divmod(config.batch, self.data_ranks)
        if rest or share < self.stages:
            least = f"{self.data_ranks} data-parallel ranks, with at least {self.stages} for each"
            raise InputError(f"batch={config.batch} must be a multiple of {least}")
        self.micro_batch = config.micro_batch_of(share, self.stages)
        self.micro_batches = share // self.micro_batch
        model = self._make_part(vocabulary, tp)
        self.model = self.module = model
        decay = config.weight_decay  # of matrices, not of biases and scales
        groups = [{"params": group, "weight_decay": decay * is_matrix(group[0])} for group in alike(model)]
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
            self.module = self.zero.start(model, self.optimizer, config.lr, BETAS)
            self.optimizer = self.module.optimizer
        elif self.stages > 1:
            part = PipelineStage(model, self.stage, self.stages, world.device, group=self.pp_group)
            schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[config.schedule]
            self.pipeline = schedule(part, self.micro_batches, loss_fn=cross_entropy)

    def _make_part(self, vocabulary: int, tp: int) -> GPT:
        """This rank's part of the model, with its first values."""
        config, device = self.config, self.world.device
        bf16 = config.bf16 and self.name not in ("zero1", "zero2", "zero3", "fsdp", "3d")  # whose weights are bf16
        build, whole = partial(GPT, config, vocabulary, bf16, config.recompute), nullcontext
        with torch.device("meta"):
            model = build()
        if self.name.startswith("zero"):
            self.zero = Zero(config, device, model, self.micro_batch, self.micro_batches)
            model, whole = self.zero.make(build, model, device), self.zero.whole
        else:
            if self.name in ("fsdp", "tp", "pp", "3d"):
                cut(model, self._mesh(tp), self.name in ("fsdp", "3d"), config)
            model.to_empty(device=device)
        value = first_values(config, vocabulary)
        fill(model, self.zero.of_tiles(value) if self.zero else value, whole)
        # What a strategy hooks between blocks stays as it is.
        for block in model.blocks.values() if config.compile else ():
            block.forward = torch.compile(block.forward)
        return model

    def _mesh(self, tp: int) -> DeviceMesh:
        """The rank's place: stages, data-parallel ranks, and neighbours that share layers."""
        shape = (self.stages, self.data_ranks, tp)
        mesh = init_device_mesh(self.world.device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
        mesh["dp", "tp"]._flatten()  # so that norms need one all-reduce
        self.data_rank, self.stage = mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()
        self.first, self.last, self.pp_group = self.stage == 0, self.stage == self.stages - 1, mesh["pp"].get_group()
        return mesh

    def step(self, batch: torch.Tensor, lr: float) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Trains on this rank's share of the batch: the rank's part of the mean loss, and the norm of the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        inputs, targets = self._share(batch)
        if self.stages > 1:
            loss = self._pipeline(self.pipeline.step, inputs, targets)
        else:
            loss = self._accumulate(inputs, targets)
        if self.name == "horovod":
            self.optimizer.synchronize()
            norm = clip(self.model, self.config.clip, self.pp_group)
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
        elif self.zero:  # it has stepped in its last backward pass
            norm = self.module.get_global_grad_norm()
        else:
            norm = clip(self.model, self.config.clip, self.pp_group)
            self.optimizer.step()
        keep = {"set_to_none": False} if self.name == "ddp" else {}  # whose gradients are views of its buckets
        self.optimizer.zero_grad(**keep)
        return loss / self.copies, norm

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Where the model, `module`, computes and learns nothing, on all ranks at once."""
        self.module.eval()
        with torch.no_grad():
            yield
        self.module.train()
        for part in self.model.modules():
            if isinstance(part, FSDPModule):  # a backward pass would have given up what other ranks have
                part.reshard()

    def validate(self, batch: torch.Tensor) -> torch.Tensor:
        """As `step`, but in `inference`: the rank's part of the mean loss."""
        inputs, targets = self._share(batch)
        if self.stages > 1:
            return self._pipeline(self.pipeline.eval, inputs, targets) / self.copies
        parts = zip(inputs.split(self.micro_batch), targets.split(self.micro_batch))
        return torch.stack([cross_entropy(self.module(x), y) for x, y in parts]).mean() / self.copies

    def _share(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        share = batch.chunk(self.data_ranks)[self.data_rank].to(self.world.device, non_blocking=True)
        return share[:, :-1], share[:, 1:]

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

    def _pipeline(self, run: Callable[..., Any], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        ends = {"target": targets, "losses": losses} if self.last else {}
        run(*([inputs] if self.first else []), **ends)
        return torch.stack(losses).mean().detach() if self.last else torch.zeros((), device=self.world.device)

    def sum_over_ranks(self, values: torch.Tensor) -> list[float]:
        if self.name == "horovod":
            values = self.hvd.allreduce(values, op=self.hvd.Sum)
        elif self.world.size > 1:
            torch.distributed.all_reduce(values)
        return values.tolist()

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, by its name in the whole model: tensors to save, or to load into."""
        return state_of(self.model, self.optimizer, self.zero)

    def restore(self, state: dict[str, torch.Tensor], step: int) -> None:
        """After tensors of `state` were loaded: takes over those that are not its own, and the optimizer's step."""
        restore(self.model, self.optimizer, self.zero, state, step)

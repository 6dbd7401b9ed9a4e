"""Train the GPT of examples/gpt on NVIDIA's megatron-core: its layers, schedules, optimizer and checkpoints, on GPUs.

Ranks that share layers (--tp) are next to each other, then data-parallel ranks, then pipeline stages (--pp).
"""

from __future__ import annotations

import argparse
import functools
import logging
import shutil
import sys
from pathlib import Path

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import torch
from corpus import Corpus
from example import EXIT_SAVED, InputError, Metrics, World, begin, finish, is_restarted, resume_dir, run_dir, stopping
from learning_rate import learning_rate
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from settings import OptionParser, is_allowed
from step_clock import StepClock
from weights import fill

SHAPE = ("context", "layers", "heads", "width")
KEPT_CHECKPOINTS = 2


def parse(words: list[str]) -> argparse.Namespace:
    parser = OptionParser(description=__doc__.split("\n", 1)[0])
    add = functools.partial(parser.add_argument, metavar="N", type=int)
    add("--data", metavar="PATH", type=str, default="", help="a text file or a directory of them")
    add("--tp", default=1, help="ranks that share each layer")
    add("--pp", default=1, help="pipeline stages")
    add("--layers", default=4)
    add("--heads", default=4)
    add("--width", default=128)
    add("--context", default=64, help="characters that the model sees")
    add("--batch", default=64, help="sequences per step, of all ranks together")
    add("--micro-batch", default=8, help="sequences per forward pass of a rank")
    add("--steps", default=1000)
    add("--warmup", default=100, help="steps in which the learning rate rises")
    add("--save-every", default=250, help="steps between checkpoints")
    add("--seed", default=1)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, with fp32 copies of the weights")
    for name, default in (("lr", 1e-3), ("weight-decay", 0.1), ("clip", 1.0)):
        parser.add_argument(f"--{name}", type=float, default=default, metavar="X")
    return parser.parse_args(words)


def check(args: argparse.Namespace, world: World) -> int:
    """The number of data-parallel ranks; raises InputError for settings that cannot work."""
    if world.device.type != "cuda":
        raise InputError("megatron-core computes on GPUs only; on CPUs run examples/gpt")
    for name, value in vars(args).items():
        may_be_zero = name in ("warmup", "seed", "weight_decay", "clip")  # without clipping
        if type(value) in (int, float) and not is_allowed(value, may_be_zero):
            least = "0 or " if may_be_zero else ""
            raise InputError(f"--{name.replace('_', '-')} must be {least}a positive number, not {value}")
    if world.size % (args.tp * args.pp):
        raise InputError(f"--tp {args.tp} x --pp {args.pp} does not divide {world.size} ranks")
    ranks = world.size // (args.tp * args.pp)
    for name, number, what, divisor in (
        ("heads", args.heads, f"--tp {args.tp}", args.tp),
        ("width", args.width, f"--heads {args.heads}", args.heads),
        ("layers", args.layers, f"--pp {args.pp}", args.pp),
        (
            "batch",
            args.batch,
            f"{ranks} data-parallel ranks x --micro-batch {args.micro_batch}",
            ranks * args.micro_batch,
        ),
    ):
        if number % divisor:
            raise InputError(f"--{name} {number} must be a multiple of {what}")
    return ranks


def make_model(args: argparse.Namespace, vocabulary: int, device: torch.device) -> DistributedDataParallel:
    """This rank's part, with its share of the weights that examples/gpt starts with."""
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=args.heads,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=args.bf16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_func=functools.partial(torch.nn.functional.gelu, approximate="tanh"),
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,  # needs Apex
        use_cpu_initialization=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=-(-vocabulary // args.tp) * args.tp,
        max_sequence_length=args.context,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).to(device)
    fill(model, args, vocabulary, parallel_state.get_tensor_model_parallel_rank())
    model = Float16Module(config, model) if args.bf16 else model
    return DistributedDataParallel(config, DistributedDataParallelConfig(), model)


def make_optimizer(args: argparse.Namespace, model: DistributedDataParallel):
    config = OptimizerConfig(
        optimizer="adam",
        bf16=args.bf16,
        params_dtype=model.config.params_dtype,
        lr=args.lr,
        min_lr=args.lr / 10,
        weight_decay=args.weight_decay,
        adam_beta1=0.9,
        adam_beta2=0.95,
        clip_grad=args.clip,
    )
    optimizer = get_megatron_optimizer(config, [model], get_standard_config_overrides(config))
    for group in optimizer.param_groups:  # matrices decay, biases and scales do not
        group["weight_decay"] = args.weight_decay * group["wd_mult"]
    return optimizer


def forward_step(batches, model):
    """What a schedule calls for each micro-batch: the output, and the function that makes the loss of it."""
    tokens = next(batches)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    positions = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
    losses = model(inputs, positions, None, labels=targets)
    return losses, lambda output: (output.mean(), output.detach().mean())


def state_of(model: DistributedDataParallel, optimizer, facts: dict, is_loading: bool = False) -> dict:
    """What a checkpoint holds, as megatron-core shards it: other numbers of ranks can load it."""
    shards = model.module.sharded_state_dict()
    return {"model": shards, "optimizer": optimizer.sharded_state_dict(shards, is_loading=is_loading), "facts": facts}


def facts_of(start: Path | None, args: argparse.Namespace) -> dict:
    """What is known of the checkpoint to resume from, or of a new start."""
    new = {"step": 0, "vocabulary": "", "shape": {key: getattr(args, key) for key in SHAPE}}
    facts = dist_checkpointing.load_common_state_dict(str(start))["facts"] if start else new
    for key, value in new["shape"].items():
        if facts["shape"][key] != value:
            raise InputError(f"--{key} {value}, but the checkpoint has --{key} {facts['shape'][key]}")
    return facts


def train(args: argparse.Namespace, world: World, directory: Path, start: Path | None) -> tuple[list[float], bool]:
    """The loss of each step, and whether a signal ended them. Writes metrics.jsonl and checkpoint/ to the directory."""
    ranks = check(args, world)
    parallel_state.initialize_model_parallel(args.tp, args.pp)
    initialize_rng_tracker(inference_rng_tracker=True)  # nothing is random: no dropout, and `fill` has the weights
    facts = facts_of(start, args)
    corpus = Corpus(args.data, args.context, facts["vocabulary"])
    facts["vocabulary"] = corpus.vocabulary
    model = make_model(args, corpus.size, world.device)
    optimizer = make_optimizer(args, model)
    if start:
        loaded = dist_checkpointing.load(state_of(model, optimizer, facts, is_loading=True), str(start))
        model.module.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    schedule, rank = get_forward_backward_func(), parallel_state.get_data_parallel_rank()
    metrics, losses, clock = Metrics(world, directory), [], StepClock()
    steps = range(facts["step"] + 1, args.steps + 1)
    for batch, step in zip(corpus.batches(steps, args.batch, args.seed), steps):
        share = batch.chunk(ranks)[rank].to(world.device, non_blocking=True)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, step)
        clock.start_computing()
        model.zero_grad_buffer()
        optimizer.zero_grad()
        parts = schedule(
            forward_step_func=forward_step,
            data_iterator=iter(share.split(args.micro_batch)),
            model=[model],
            num_microbatches=len(share) // args.micro_batch,
            seq_length=args.context,
            micro_batch_size=args.micro_batch,
        )
        optimizer.step()
        # Ranks of the last stage have losses; those that share its layers have the same.
        loss = torch.stack(parts).mean() / (ranks * args.tp) if parts else torch.zeros((), device=world.device)
        totals = torch.stack([loss, loss.new_tensor(float(stopping()))])
        torch.distributed.all_reduce(totals)
        mean, stops = totals.tolist()
        losses.append(mean)
        speed, times = clock.end_step(args.batch * args.context)
        metrics.write(step=step, steps=args.steps, loss=mean, tokens_per_second=speed, **times)
        if stops or step == args.steps or step % args.save_every == 0:
            path = save(directory / "checkpoint", state_of(model, optimizer, {**facts, "step": step}), world.rank)
            world.say(f"step {step}/{args.steps}  loss {mean:.3f}  {speed:,.0f} tokens/s  {path.name} saved")
        if stops:
            return losses, True
    return losses, False


def save(directory: Path, state: dict, rank: int) -> Path:
    """Writes directory/step-N, N from the facts, and removes old ones; returns its path."""
    path = directory / f"step-{state['facts']['step']:08d}"
    path.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(state, str(path))
    for old in checkpoints(directory)[:-KEPT_CHECKPOINTS] if rank == 0 else ():
        shutil.rmtree(old)
    return path


def checkpoints(directory: Path) -> list[Path]:
    """Oldest first. The last file that is written, metadata.json, makes a checkpoint complete."""
    return sorted(path.parent for path in directory.glob("step-*/metadata.json"))


def main() -> int:
    logging.getLogger("megatron").setLevel(logging.ERROR)
    args, resume = parse(sys.argv[1:]), resume_dir()
    found = checkpoints(resume) if resume else []
    if resume and not found and not is_restarted():
        raise InputError(f"{resume} has no checkpoint to resume from")
    world = begin()
    stopping()  # from here on a signal only asks for the end
    _, stopped = train(args, world, run_dir(), found[-1] if found else None)
    return EXIT_SAVED if stopped else 0


if __name__ == "__main__":
    finish(main)

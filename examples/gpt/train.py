"""Train a GPT on a text, by a parallel strategy of your choice: KEY=VALUE, see config.py."""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from pathlib import Path

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import sharded
import torch
from config import Config, parse
from corpus import Corpus
from example import EXIT_SAVED, InputError, Metrics, World, begin, finish, resume_dir, run_dir, stopping
from gpt_model import continue_text
from gpt_shape import Shape
from learning_rate import learning_rate
from step_clock import StepClock
from strategies import Strategy


def facts_of(start: Path | None, config: Config) -> dict:
    """What is known of the checkpoint to resume from, or of a new start."""
    facts = sharded.read_facts(start) if start else {"step": 0, "vocabulary": "", "config": asdict(config)}
    theirs = {field.name: facts["config"].get(field.name, field.default) for field in fields(Shape)}
    if other := [f"{key}={value}" for key, value in theirs.items() if value != getattr(config, key)]:
        raise InputError(f"the checkpoint needs {' '.join(other)}")
    return facts


def is_alone(config: Config, world: World) -> bool:
    """Whether a rank reads and writes whole checkpoints: there is no process group."""
    return world.size == 1 or config.strategy == "horovod"


def train(config: Config, world: World, directory: Path, start: Path | None = None) -> tuple[list[float], bool]:
    """The loss of each step, and whether a signal ended them. Writes metrics.jsonl and checkpoint/ to the directory."""
    facts = facts_of(start, config)
    corpus = Corpus(config.data, config.context, facts["vocabulary"])
    strategy = Strategy(config, world, corpus.size)
    alone = is_alone(config, world)
    if start:
        state = strategy.state()
        sharded.load(start, state, alone)
        strategy.restore(state, facts["step"])
    metrics, losses, clock = Metrics(world, directory), [], StepClock()
    steps = range(facts["step"] + 1, config.steps + 1)
    for batch, step in zip(corpus.batches(steps, config.batch, config.seed), steps):
        clock.start_computing()
        lr = learning_rate(config, step)
        loss, norm = strategy.step(batch, lr)
        mean, stops = strategy.sum_over_ranks(torch.stack([loss, loss.new_tensor(float(stopping()))]))
        losses.append(mean)
        speed, more = clock.end_step(config.batch * config.context)
        if own := clock.shares(step, config.steps, world.rank, world.size):
            more["seconds_by_rank"] = strategy.sum_over_ranks(torch.tensor(own, dtype=torch.double).to(world.device))
        if not stops and (step == config.steps or (config.validate_every and step % config.validate_every == 0)):
            validated = validation_loss(config, corpus, strategy)
            more |= {"validation_loss": validated} if validated is not None else {}
        metrics.write(
            step=step, steps=config.steps, loss=mean, lr=lr, grad_norm=float(norm), tokens_per_second=speed, **more
        )
        if stops or step == config.steps or step % config.save_every == 0:
            facts = {"step": step, "vocabulary": corpus.vocabulary, "config": asdict(config)}
            path = sharded.save(directory / "checkpoint", strategy.state(), facts, world.rank, alone)
            world.say(f"step {step}/{config.steps}  loss {mean:.3f}  {speed:,.0f} tokens/s  {path.name} saved")
        if stops:
            return losses, True
    if not losses:  # the checkpoint has all steps
        validated = validation_loss(config, corpus, strategy)
    report(config, world, corpus, strategy, validated)
    return losses, False


def validation_loss(config: Config, corpus: Corpus, strategy: Strategy) -> float | None:
    """By all ranks, each with its part of the model; None for a pipeline of an older torch, which can only train."""
    if strategy.stages > 1 and not hasattr(strategy.pipeline, "eval"):
        return None
    with strategy.inference():
        losses = [strategy.validate(batch) for batch in corpus.validation_batches(config.batch)]
    return strategy.sum_over_ranks(torch.stack(losses).mean(0, keepdim=True))[0]


def report(config: Config, world: World, corpus: Corpus, strategy: Strategy, loss: float | None) -> None:
    """Prints the validation loss, and a text that the model makes up."""
    known = "unknown: pipelines of this torch only train" if loss is None else f"{loss:.3f}"
    entropy = f"unigram entropy of the text {corpus.unigram_entropy():.3f} (nats per token)"
    world.say(f"validation loss {known}, {entropy}")
    if config.sample and (strategy.stages > 1 or config.sequence_parallel):
        world.say("no sample: these ranks compute sequences of one length; resume with another strategy")
    elif config.sample:
        start = torch.tensor(corpus.validation[:1].tolist(), device=world.device)
        with strategy.inference():
            text = continue_text(strategy.module, start, config.sample, config.context, config.seed)
        world.say(corpus.decode(text.tolist()))


def main() -> int:
    config, resume = parse(sys.argv[1:]), resume_dir()
    world = begin("horovod" if config.strategy == "horovod" else "torch")
    start = sharded.newest(resume, world.rank, is_alone(config, world)) if resume else None
    stopping()  # from here on a signal only asks for the end
    _, stopped = train(config, world, run_dir(), start)
    return EXIT_SAVED if stopped else 0


if __name__ == "__main__":
    finish(main)

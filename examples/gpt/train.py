"""Train a GPT on the characters of a text, by a parallel strategy of your choice: KEY=VALUE, see config.py."""

from __future__ import annotations

import math
import signal
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.extend([str(Path(__file__).resolve().parents[1] / "common"), "/opt/ctrain/examples/common"])
import sharded
import torch
from characters import Corpus
from config import Config, parse
from example import InputError, Metrics, World, begin, finish, resume_dir, run_dir
from gpt_model import GPT, cross_entropy
from step_clock import StepClock
from strategies import Strategy

SHAPE = ("context", "layers", "heads", "width")
stop_asked: list[int] = []  # signals


def make_model(config: Config, vocabulary: str) -> GPT:
    torch.manual_seed(config.seed)
    return GPT(len(vocabulary), *(getattr(config, key) for key in SHAPE), config.bf16, config.recompute)


def learning_rate(config: Config, step: int) -> float:
    """A linear warm-up, then half a cosine down to a tenth."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    return config.lr * (0.55 + 0.45 * math.cos(math.pi * (step - config.warmup) / (config.steps - config.warmup)))


def facts_of(start: Path | None, config: Config) -> dict:
    """What is known of the checkpoint to resume from, or of a new start."""
    facts = sharded.read_facts(start) if start else {"step": 0, "vocabulary": "", "config": asdict(config)}
    for key in SHAPE:
        if facts["config"][key] != getattr(config, key):
            raise InputError(f"{key}={getattr(config, key)}, but the checkpoint has {key}={facts['config'][key]}")
    return facts


def train(config: Config, world: World, directory: Path, start: Path | None = None) -> tuple[list[float], bool]:
    """The loss of each step, and whether SIGTERM ended them. Writes metrics.jsonl and checkpoint/ to the directory."""
    facts = facts_of(start, config)
    corpus = Corpus(config.data, config.context, facts["vocabulary"])
    strategy = Strategy(config, world, make_model(config, corpus.vocabulary))
    alone = world.size == 1 or config.strategy == "horovod"  # no process group
    if start:
        state = strategy.state()
        sharded.load(start, state, alone)
        strategy.restore(state, facts["step"])
    metrics, losses, clock = Metrics(world, directory), [], StepClock()
    for step in range(facts["step"] + 1, config.steps + 1):
        batch, lr = corpus.batch(step, config.batch, config.seed), learning_rate(config, step)
        clock.start_computing()
        loss = strategy.step(batch, lr)
        mean, stops = strategy.sum_over_ranks(torch.stack([loss, loss.new_tensor(float(len(stop_asked)))]))
        losses.append(mean)
        speed, times = clock.end_step(config.batch * config.context)
        metrics.write(step=step, steps=config.steps, loss=mean, lr=lr, tokens_per_second=speed, **times)
        if stops or step == config.steps or step % config.save_every == 0:
            facts = {"step": step, "vocabulary": corpus.vocabulary, "config": asdict(config)}
            path = sharded.save(directory / "checkpoint", strategy.state(), facts, world.rank, alone)
            world.say(f"step {step}/{config.steps}  loss {mean:.3f}  {speed:,.0f} tokens/s  {path.name} saved")
        if stops:
            return losses, True
    if world.rank == 0 and config.sample and losses:
        evaluate(config, corpus, path)
    return losses, False


@torch.no_grad()
def evaluate(config: Config, corpus: Corpus, path: Path) -> None:
    """Prints the validation loss of a checkpoint and a text that it makes up: one rank, whatever strategy wrote it."""
    model = make_model(config, corpus.vocabulary).eval()
    sharded.load(path, dict(model.named_parameters()), alone=True)
    lines = corpus.validation.unfold(0, config.context + 1, config.context)[:256]
    loss, entropy = cross_entropy(model(lines[:, :-1]), lines[:, 1:]), corpus.unigram_entropy()
    print(f"validation loss {loss:.3f}, unigram entropy of the text {entropy:.3f} (nats per character)")
    print("".join(corpus.vocabulary[token] for token in model.continue_text(corpus.validation[:1], config.sample)))


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, _: stop_asked.append(number))
    config, resume = parse(sys.argv[1:]), resume_dir()
    world = begin("horovod" if config.strategy == "horovod" else "torch")
    _, terminated = train(config, world, run_dir(), sharded.newest(resume) if resume else None)
    return 128 + signal.SIGTERM if terminated else 0


if __name__ == "__main__":
    finish(main)

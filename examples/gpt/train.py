"""Train a GPT on the characters of a text, by a parallel strategy of your choice: KEY=VALUE, see config.py."""

from __future__ import annotations

import gc
import signal
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
import sharded
import torch
from characters import Corpus
from config import Config, parse
from example import InputError, Metrics, World, begin, finish, resume_dir, run_dir
from gpt_model import GPT, cross_entropy
from learning_rate import learning_rate
from step_clock import StepClock
from strategies import Strategy

SHAPE = ("context", "layers", "heads", "width")
stop_asked: list[int] = []  # signals


def make_model(config: Config, vocabulary: str) -> GPT:
    torch.manual_seed(config.seed)
    return GPT(len(vocabulary), *(getattr(config, key) for key in SHAPE), config.bf16, config.recompute)


def facts_of(start: Path | None, config: Config) -> dict:
    """What is known of the checkpoint to resume from, or of a new start."""
    facts = sharded.read_facts(start) if start else {"step": 0, "vocabulary": "", "config": asdict(config)}
    for key in SHAPE:
        if facts["config"][key] != getattr(config, key):
            raise InputError(f"{key}={getattr(config, key)}, but the checkpoint has {key}={facts['config'][key]}")
    return facts


def train(config: Config, world: World, directory: Path, start: Path | None = None) -> tuple[list[float], Path | None]:
    """The loss of each step, and the last checkpoint (None: SIGTERM came). Writes metrics.jsonl and checkpoint/."""
    facts = facts_of(start, config)
    corpus = Corpus(config.data, config.context, facts["vocabulary"])
    strategy = Strategy(config, world, make_model(config, corpus.vocabulary))
    alone = world.size == 1 or config.strategy == "horovod"  # no process group
    if start:
        state = strategy.state()
        sharded.load(start, state, alone)
        strategy.restore(state, facts["step"])
    metrics, losses, clock, path = Metrics(world, directory), [], StepClock(), start
    for step in range(facts["step"] + 1, config.steps + 1):
        batch, lr = corpus.batch(step, config.batch, config.seed), learning_rate(config, step)
        clock.start_computing()
        loss, norm = strategy.step(batch, lr)
        mean, stops = strategy.sum_over_ranks(torch.stack([loss, loss.new_tensor(float(len(stop_asked)))]))
        losses.append(mean)
        speed, times = clock.end_step(config.batch * config.context)
        metrics.write(
            step=step, steps=config.steps, loss=mean, lr=lr, grad_norm=float(norm), tokens_per_second=speed, **times
        )
        if stops or step == config.steps or step % config.save_every == 0:
            facts = {"step": step, "vocabulary": corpus.vocabulary, "config": asdict(config)}
            path = sharded.save(directory / "checkpoint", strategy.state(), facts, world.rank, alone)
            world.say(f"step {step}/{config.steps}  loss {mean:.3f}  {speed:,.0f} tokens/s  {path.name} saved")
        if stops:
            return losses, None
    return losses, path


@torch.no_grad()
def evaluate(config: Config, path: Path, device: torch.device) -> None:
    """Prints the validation loss of a checkpoint and a text that it makes up: one rank, whatever strategy wrote it."""
    gc.collect()  # the training's memory
    corpus = Corpus(config.data, config.context, facts_of(path, config)["vocabulary"])
    model = make_model(config, corpus.vocabulary).to(device).eval()
    sharded.load(path, dict(model.named_parameters()), alone=True)
    lines = corpus.validation.unfold(0, config.context + 1, config.context)[:256].to(device)
    sums = [cross_entropy(model(part[:, :-1]), part[:, 1:]) * len(part) for part in lines.split(config.micro_batch)]
    loss, entropy = sum(sums) / len(lines), corpus.unigram_entropy()
    print(f"validation loss {loss:.3f}, unigram entropy of the text {entropy:.3f} (nats per character)")
    text = model.continue_text(corpus.validation[:1].to(device), config.sample)
    print("".join(corpus.vocabulary[token] for token in text))


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, _: stop_asked.append(number))
    config, resume = parse(sys.argv[1:]), resume_dir()
    world = begin("horovod" if config.strategy == "horovod" else "torch")
    _, path = train(config, world, run_dir(), sharded.newest(resume) if resume else None)
    if path and config.sample and world.rank == 0:
        evaluate(config, path, world.device)
    return 0 if path else 128 + signal.SIGTERM


if __name__ == "__main__":
    finish(main)

"""Train a GPT on the characters of a text, by a parallel strategy of your choice: KEY=VALUE, see config.py."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Optional

sys.path.extend([str(Path(__file__).resolve().parents[1] / "common"), "/opt/ctrain/examples/common"])
import checkpoint
import torch
from config import Config, ConfigError, parse
from data import Corpus
from example import Metrics, World, begin, finish, resume_dir, run_dir
from model import GPT, cross_entropy
from strategies import Strategy

stop_asked: list[int] = []  # signals


class Terminated(Exception):
    """SIGTERM reached a rank, and all ranks have saved the same step."""


def learning_rate(config: Config, step: int) -> float:
    """A linear warm-up, then half a cosine down to a tenth."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * (0.55 + 0.45 * math.cos(math.pi * done))


def train(config: Config, world: World, directory: Path, resume: Optional[Path] = None) -> list[float]:
    """The loss of each step. Writes metrics.jsonl and checkpoint/ to the directory. Raises ConfigError, Terminated."""
    start = resume and checkpoint.newest(resume)
    if resume and not start:
        raise ConfigError(f"{resume} has no checkpoint to resume from")
    known = json.loads((start / "known.json").read_text()) if start else {"step": 0, "vocabulary": "", "config": {}}
    for key in ("layers", "heads", "width", "context"):
        if known["config"].get(key, getattr(config, key)) != getattr(config, key):
            raise ConfigError(f"{key}={getattr(config, key)}, but the checkpoint has {known['config'][key]}")
    corpus = Corpus(config, known["vocabulary"])
    torch.manual_seed(config.seed)
    strategy = Strategy(config, world, GPT(config, len(corpus.vocabulary)))
    alone = world.size == 1 or config.strategy == "horovod"  # no process group: rank 0 writes everything
    if start:
        state = strategy.state()
        checkpoint.dcp.load(state, checkpoint_id=start, no_dist=alone)
        strategy.restore(state, known["step"])
    metrics, losses, began = Metrics(world, directory), [], time.monotonic()
    for step in range(known["step"] + 1, config.steps + 1):
        lr = learning_rate(config, step - 1)
        loss = strategy.step(corpus.batch(step), lr)
        mean, stops = strategy.sums(torch.stack([loss, loss.new_tensor(float(len(stop_asked)))]))
        losses.append(mean)
        speed = round(config.batch * config.context / (time.monotonic() - began))
        began = time.monotonic()
        metrics.write(step=step, steps=config.steps, loss=mean, lr=lr, tokens_per_second=speed)
        if stops or step == config.steps or step % config.save_every == 0:
            state = strategy.state()
            known = {"step": step, "vocabulary": corpus.vocabulary, "config": asdict(config)}
            if world.rank == 0 or not alone:
                checkpoint.save(directory / "checkpoint", state, known, world.rank, alone)
            world.say(f"step {step}/{config.steps}  loss {mean:.3f}  {speed:,} tokens/s  checkpoint saved")
        if stops:
            raise Terminated
    if world.rank == 0 and config.sample:
        evaluate(config, corpus, checkpoint.newest(directory))
    return losses


@torch.no_grad()
def evaluate(config: Config, corpus: Corpus, path: Path) -> None:
    """Prints the validation loss of a checkpoint and a text that it makes up: one rank, whatever strategy wrote it."""
    model = GPT(config, len(corpus.vocabulary)).eval()
    checkpoint.dcp.load(dict(model.named_parameters()), checkpoint_id=path, no_dist=True)
    lines = corpus.validation.unfold(0, config.context + 1, config.context)[:256]
    loss, entropy = cross_entropy(model(lines[:, :-1]), lines[:, 1:]), corpus.unigram_entropy()
    print(f"validation loss {loss:.3f}, unigram entropy of the text {entropy:.3f} (nats per character)")
    text = corpus.validation[:1][None]
    for _ in range(config.sample):
        chances = model(text[:, -config.context :])[0, -1].softmax(-1)
        text = torch.cat([text, torch.multinomial(chances, 1)[None]], dim=1)
    print("".join(corpus.vocabulary[token] for token in text[0]))


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, _: stop_asked.append(number))
    try:
        config = parse(sys.argv[1:])
        world = begin("horovod" if config.strategy == "horovod" else "torch")
        train(config, world, run_dir(), resume_dir())
    except ConfigError as error:
        raise SystemExit(f"train.py: {error}") from None
    except Terminated:
        return 128 + signal.SIGTERM
    return 0


if __name__ == "__main__":
    finish(main)

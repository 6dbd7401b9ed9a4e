"""Fine-tune a transformer to tell texts apart, with transformers and accelerate. Nothing is fetched from anywhere.

  ctrain run finetune --nodes 2                                the example makes the pretrained weights itself
  ctrain run finetune --nodes 2 --mount DIR -- --weights DIR/model --data DIR/texts

The encoder gets a new last layer, which names the class of a passage, and is tested on files that it has not seen.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator, DataLoaderConfiguration

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
from checkpoint import load_checkpoint, save_checkpoint
from example import EXIT_SAVED, InputError, Metrics, World, begin, finish, is_restarted, resume_dir, run_dir, stopping
from late import one_late, start_reading
from learning_rate import learning_rate
from pretrain import pretrain
from settings import OptionParser, is_allowed
from text import find_files, passages, split
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LR, LR_OF_OWN = 2e-5, 2e-3  # of given weights, and of the small model that is made here
MAY_BE_ZERO = ("pretrain_steps", "warmup", "weight_decay", "clip", "lora")


def parse_options(words: list[str]) -> argparse.Namespace:
    parser = OptionParser(
        description="Fine-tune a transformer to tell texts apart.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="a directory of text files per class; None: Python's")
    add("--weights", type=Path, metavar="DIR", help="a model and its tokenizer; None: made here")
    add("--pretrain-steps", type=int, default=150, metavar="N", help="steps to make the weights")
    add("--epochs", type=int, default=2)
    add("--batch-size", type=int, default=32, metavar="N", help="passages per rank and step")
    add("--length", type=int, default=64, metavar="N", help="tokens of a passage")
    add("--lr", type=float, metavar="X", help=f"highest learning rate; None: {LR} with --weights, else {LR_OF_OWN}")
    add("--warmup", type=float, default=0.1, metavar="SHARE", help="of the steps, in which the learning rate rises")
    add("--weight-decay", type=float, default=0.01, metavar="X", help="of matrices")
    add("--clip", type=float, default=1.0, metavar="X", help="largest norm of the gradient; 0: as it is")
    add("--lora", type=int, default=0, metavar="RANK", help="train only matrices of this rank (peft); 0: all weights")
    options = parser.parse_args(words)
    options.lr = options.lr if options.lr is not None else LR if options.weights else LR_OF_OWN
    for name, value in vars(options).items():
        if type(value) in (int, float) and not is_allowed(value, name in MAY_BE_ZERO):
            least = "0 or " if name in MAY_BE_ZERO else ""
            raise InputError(f"--{name.replace('_', '-')} must be {least}a positive number, not {value}")
    return options


def find_weights(
    texts: list[tuple[str, int]], options: argparse.Namespace, accelerator: Accelerator, metrics: Metrics
) -> Path:
    """The directory of the weights to start from: given, those of the run to resume, or made now."""
    if options.weights:
        return options.weights
    # In the checkpoint's directory, which the run that resumes this one gets to see.
    directory = run_dir() / "checkpoint" / "pretrained"
    if resume_dir() is None or (is_restarted() and not (directory / "model.safetensors").exists()):
        pretrain(texts, options, accelerator, metrics, directory)
    elif accelerator.is_main_process and not is_restarted():
        shutil.copytree(resume_dir() / "pretrained", directory)
    accelerator.wait_for_everyone()
    return directory


def with_lora(model: torch.nn.Module, rank: int) -> torch.nn.Module:
    """The model, of which only additions of low rank to its matrices, and the new last layer, are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise InputError("--lora needs the package peft, which this image lacks: see the README") from None
    shape = LoraConfig(task_type="SEQ_CLS", r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    return get_peft_model(model, shape)


class Trainer:
    """The model on one rank, and how far it is trained."""

    def __init__(self, options: argparse.Namespace, world: World, accelerator: Accelerator) -> None:
        self.options, self.world, self.accelerator, self.stopping = options, world, accelerator, False
        self.metrics, resumed = Metrics(world), load_checkpoint(torch.device("cpu"))
        files = find_files(options.data)
        train_texts, val_texts = split(files)
        weights = find_weights(train_texts, options, accelerator, self.metrics)
        tokenizer = AutoTokenizer.from_pretrained(weights)
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(weights, num_labels=len(files))
        self.model = with_lora(model, options.lora) if options.lora else model
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        decayed, others = ([p for p in self.trained.values() if (p.ndim > 1) == matrix] for matrix in (True, False))
        groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=options.lr)
        if resumed:
            self.model.load_state_dict(resumed["model"], strict=False)  # it has what is trained
            optimizer.load_state_dict(resumed["optimizer"])
        loader = DataLoader(passages(train_texts, tokenizer, options.length), options.batch_size, shuffle=True)
        val_loader = DataLoader(passages(val_texts, tokenizer, options.length), options.batch_size)
        prepared = accelerator.prepare(self.model, optimizer, loader, val_loader)
        self.wrapped, self.optimizer, self.loader, self.val_loader = prepared
        self.steps_per_epoch = len(self.loader)
        # On another number of ranks an epoch has another number of steps.
        self.step = round(resumed["step"] / resumed["steps_per_epoch"] * self.steps_per_epoch) if resumed else 0
        steps = options.epochs * self.steps_per_epoch
        self.schedule = argparse.Namespace(lr=options.lr, warmup=round(options.warmup * steps), steps=steps)

    def train(self) -> bool:
        """Whether a signal ended it."""
        stopping()  # from here on a signal only asks for the end; earlier, there is nothing to save
        for epoch in range(self.step // self.steps_per_epoch, self.options.epochs):
            place = {"phase": "finetune", "epoch": epoch + 1, "epochs": self.options.epochs}
            for facts, read in one_late(self._train_epoch(epoch)):
                mean, stops = read()
                self.stopping = self.stopping or stops > 0
                self.metrics.write(**place, **facts, loss=mean)
            if self.stopping:
                self.save()
                self.world.say(f"asked to end after step {self.step} of {self.schedule.steps}; a checkpoint was saved")
                return True
            correct, count = self.evaluate()
            self.metrics.write(**place, step=self.step, accuracy=correct / count, passages=count)
            self.world.say(
                f"epoch {epoch + 1}/{self.options.epochs}  loss {mean:.2f}  "
                f"accuracy {correct / count:.1%} of {count} passages"
            )
            self.save()
        return False

    def _train_epoch(self, epoch: int) -> Iterator[tuple[dict[str, float], Callable[[], Any]]]:
        """Trains what is left of an epoch; for each step its facts, and the means of losses and of requests to stop."""
        self.wrapped.train()
        loader, seen = self.loader, self.step % self.steps_per_epoch
        if seen:
            loader = self.accelerator.skip_first_batches(loader, seen)
        loader.set_epoch(epoch)
        for tokens, labels in loader:
            self.step += 1
            lr = learning_rate(self.schedule, self.step)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            loss = self.wrapped(input_ids=tokens, labels=labels).loss
            self.accelerator.backward(loss)
            if self.options.clip:
                self.accelerator.clip_grad_norm_(self.trained.values(), self.options.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            means = torch.stack([loss.detach().float(), torch.full((), float(stopping()), device=loss.device)])
            facts = {"step": self.step, "steps": self.schedule.steps, "lr": lr}
            yield facts, start_reading(self.accelerator.reduce(means, "mean"))
            if self.stopping:
                return

    @torch.no_grad()
    def evaluate(self) -> tuple[int, int]:
        """(passages classified correctly, all): gather_for_metrics drops those that only fill the last batch."""
        self.wrapped.eval()
        correct = count = 0
        for tokens, labels in self.val_loader:
            answers = self.wrapped(input_ids=tokens).logits.argmax(dim=1)
            answers, labels = self.accelerator.gather_for_metrics((answers, labels))
            correct += (answers == labels).sum()
            count += len(labels)
        return int(correct), count

    def save(self) -> None:
        if self.world.rank == 0:
            trained = {name: parameter.detach() for name, parameter in self.trained.items()}
            place = {"step": self.step, "steps_per_epoch": self.steps_per_epoch}
            save_checkpoint({**place, "model": trained, "optimizer": self.optimizer.state_dict()})


def choose_precision(device: torch.device) -> str:
    if device.type == "cpu":
        return "no"
    return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp16"  # older ones only imitate bfloat16


def main() -> int:
    options = parse_options(sys.argv[1:])
    world = begin()
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)  # accelerate imports DeepSpeed, which warns of a guess
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Seedable: a resumed run deals the passages as the first one would have.
    loading = DataLoaderConfiguration(use_seedable_sampler=True)
    precision, on_cpu = choose_precision(world.device), world.device.type == "cpu"
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=precision, dataloader_config=loading)
    return EXIT_SAVED if Trainer(options, world, accelerator).train() else 0


if __name__ == "__main__":
    finish(main)

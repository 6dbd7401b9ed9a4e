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
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator, DataLoaderConfiguration

sys.path.insert(1, "/opt/ctrain/examples/common")
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "common"))
from checkpoint import load_checkpoint, save_checkpoint
from example import Metrics, World, begin, finish, is_restarted, resume_dir, run_dir
from pretrain import pretrain
from settings import OptionParser
from text import find_files, passages, split
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def parse_options() -> argparse.Namespace:
    parser = OptionParser(
        description="Fine-tune a transformer to tell texts apart.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="a directory of text files per class; None: Python's")
    parser.add_argument("--weights", type=Path, metavar="DIR", help="a model and its tokenizer; None: made here")
    parser.add_argument("--pretrain-steps", type=int, default=150, metavar="N", help="steps to make the weights")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="passages per rank and step")
    parser.add_argument("--length", type=int, default=64, metavar="N", help="tokens of a passage")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate")
    return parser.parse_args()


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


def finetune(options: argparse.Namespace, world: World, accelerator: Accelerator) -> None:
    metrics = Metrics(world)
    resumed = load_checkpoint(torch.device("cpu"))
    files = find_files(options.data)
    train_texts, val_texts = split(files)
    weights = find_weights(train_texts, options, accelerator, metrics)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(weights, num_labels=len(files))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    first_epoch = 0
    if resumed:
        first_epoch = resumed["epoch"]
        model.load_state_dict(resumed["model"])
        optimizer.load_state_dict(resumed["optimizer"])
    loader = DataLoader(passages(train_texts, tokenizer, options.length), options.batch_size, shuffle=True)
    val_loader = DataLoader(passages(val_texts, tokenizer, options.length), options.batch_size)
    wrapped, optimizer, loader, val_loader = accelerator.prepare(model, optimizer, loader, val_loader)
    steps = options.epochs * len(loader)
    for epoch in range(first_epoch, options.epochs):
        loader.set_epoch(epoch)
        wrapped.train()
        for step, (tokens, labels) in enumerate(loader, start=epoch * len(loader) + 1):
            loss = wrapped(input_ids=tokens, labels=labels).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            mean = accelerator.reduce(loss.detach(), "mean").item()
            metrics.write(phase="finetune", epoch=epoch + 1, epochs=options.epochs, step=step, steps=steps, loss=mean)
        correct, count = evaluate(wrapped, val_loader, accelerator)
        metrics.write(phase="finetune", epoch=epoch + 1, step=step, accuracy=correct / count, passages=count)
        world.say(
            f"epoch {epoch + 1}/{options.epochs}  loss {mean:.2f}  accuracy {correct / count:.1%} of {count} passages"
        )
        if world.rank == 0:
            state = {"epoch": epoch + 1, "step": step, "optimizer": optimizer.state_dict()}
            save_checkpoint({**state, "model": model.state_dict()})


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: DataLoader, accelerator: Accelerator) -> tuple[int, int]:
    """(passages classified correctly, all passages): gather_for_metrics drops those that only fill the last batch."""
    model.eval()
    correct = count = 0
    for tokens, labels in loader:
        answers = model(input_ids=tokens).logits.argmax(dim=1)
        answers, labels = accelerator.gather_for_metrics((answers, labels))
        correct += int((answers == labels).sum())
        count += len(labels)
    return correct, count


def main() -> int:
    options = parse_options()
    world = begin()
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)  # accelerate imports DeepSpeed, which warns of a guess
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # Seedable: a resumed run deals the passages as the first one would have.
    loading = DataLoaderConfiguration(use_seedable_sampler=True)
    finetune(options, world, Accelerator(cpu=world.device.type == "cpu", dataloader_config=loading))
    return 0


if __name__ == "__main__":
    finish(main)

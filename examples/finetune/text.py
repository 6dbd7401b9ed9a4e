"""Text with labels: a directory per class, by default packages of Python's own library, which every image has."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Optional

import torch
from torch.utils.data import TensorDataset
from transformers import PreTrainedTokenizerBase

PACKAGES = ("asyncio", "email", "importlib", "multiprocessing", "unittest", "xml")
VALIDATION = 4  # one file of so many


def find_files(directory: Optional[Path]) -> dict[str, list[Path]]:
    """The text files of each class. Ends the program if there is nothing to tell apart."""
    if directory:
        classes, pattern = sorted(path for path in directory.glob("*") if path.is_dir()), "*"
    else:
        directory = Path(sysconfig.get_path("stdlib"))
        classes, pattern = [directory / name for name in PACKAGES], "*.py"
    files = {path.name: sorted(file for file in path.rglob(pattern) if file.is_file()) for path in classes}
    small = [name for name, paths in files.items() if len(paths) < 2]
    if small or len(files) < 2:
        reason = f"class {small[0]} has fewer than two files" if small else "not found, or fewer than two directories"
        raise SystemExit(f"{directory}: {reason}. Pass --data DIR, with a directory of text files per class")
    return files


def split(files: dict[str, list[Path]]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """(text, label) of files to train on, and of others to validate: passages of one file are too much alike."""
    train, val = [], []
    for label, paths in enumerate(files.values()):
        for number, path in enumerate(paths):
            part = val if number % VALIDATION == 1 else train
            part.append((path.read_text(encoding="utf-8", errors="replace"), label))
    return train, val


def passages(texts: list[tuple[str, int]], tokenizer: PreTrainedTokenizerBase, length: int) -> TensorDataset:
    """Consecutive passages of `length` tokens; what is left at the end of a text is dropped."""
    tokens, labels = [], []
    for text, label in texts:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        pieces = torch.tensor(ids[: len(ids) // length * length], dtype=torch.long).view(-1, length)
        tokens.append(pieces)
        labels.append(torch.full((len(pieces),), label))
    return TensorDataset(torch.cat(tokens), torch.cat(labels))

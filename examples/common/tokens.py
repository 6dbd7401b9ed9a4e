"""Makes tokens of a text, and leaves them on disk: for texts that fit no memory, and for pieces of words as tokens.

    ctrain run --image pytorch --ranks-per-node 1 --mount /scratch/me -- \\
        python /opt/ctrain/examples/common/tokens.py /scratch/me/text /scratch/me/tokens

A program that has a Corpus takes the directory that this writes as its data.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
from ctrain_program import rank
from example import InputError, finish
from settings import OptionParser

NUMBERS, TOKENIZER, FACTS = "tokens.bin", "tokenizer.json", "tokens.json"
END = "<|endoftext|>"  # of a file, as GPT-2 has it
PIECE, LEARNT_FROM = 1 << 20, 64  # characters that are read at once, and from how many pieces a tokenizer is learnt


class Tokens:
    """What is in a directory that this program has written. `vocabulary`: that of a checkpoint, or none yet."""

    def __init__(self, path: Path, vocabulary: str) -> None:
        facts, numbers = json.loads((path / FACTS).read_text()), path / NUMBERS
        if numbers.stat().st_size != facts["bytes"]:
            raise InputError(
                f"{numbers} has {numbers.stat().st_size} bytes, not {facts['bytes']}: copy or make it anew"
            )
        self.path, self.vocabulary, self.size = path, facts["tokenizer"], facts["size"]
        if vocabulary not in ("", self.vocabulary):
            raise InputError(f"{path} has another tokenizer than the text of the checkpoint")
        self.numbers = numpy.memmap(numbers, facts["type"], "r")

    @staticmethod
    def are_in(path: Path) -> bool:
        return (path / FACTS).is_file()

    def decode(self, numbers: list[int]) -> str:
        return tokenizers().Tokenizer.from_file(str(self.path / TOKENIZER)).decode(numbers)


def tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise InputError("tokens need the package tokenizers: choose an image with the layer libraries") from None
    return tokenizers


def text_files(path: Path) -> list[Path]:
    """A file, or those of a directory, without those that are another one's under a second name (GPL and GPL-3)."""
    files = sorted({file.resolve() for file in path.rglob("*")} if path.is_dir() else {path})
    return [file for file in files if file.is_file()]


def pieces(file: Path) -> Iterator[str]:
    """The text of a file, by some lines at a time."""
    with file.open(errors="replace") as lines:
        yield from map("".join, iter(lambda: lines.readlines(PIECE), []))


def write(text: Path, directory: Path, tokenizer: Path | None, size: int) -> str:
    """Writes the directory; returns what to print of it."""
    files, library = text_files(text), tokenizers()
    if not files:
        raise InputError(f"{text} has no files")
    if tokenizer:
        tokenizer.open().close()  # the library's own error does not name it
        found = library.Tokenizer.from_file(str(tokenizer))
    else:
        learner = library.ByteLevelBPETokenizer()
        some = itertools.islice(itertools.chain.from_iterable(map(pieces, files)), LEARNT_FROM)
        learner.train_from_iterator(some, size, special_tokens=[END], show_progress=False)
        found = learner._tokenizer
    directory.mkdir(parents=True, exist_ok=True)
    found.save(str(directory / TOKENIZER))
    size, end = found.get_vocab_size(), found.token_to_id(END)
    kind = numpy.dtype("<u2" if size <= 1 << 16 else "<u4")
    with (directory / NUMBERS).open("wb") as numbers:
        for file in files:
            for piece in pieces(file):
                numpy.asarray(found.encode(piece, add_special_tokens=False).ids, kind).tofile(numbers)
            numpy.asarray([] if end is None else [end], kind).tofile(numbers)
        length = numbers.tell()
    digest = hashlib.sha256((directory / TOKENIZER).read_bytes()).hexdigest()
    facts = {"tokenizer": f"sha256:{digest}", "size": size, "type": kind.str, "bytes": length}
    (directory / FACTS).write_text(json.dumps(facts))  # last: without it, these are no tokens
    return f"{directory}: {length // kind.itemsize:,} tokens, of {size:,} different ones"


def main() -> int:
    parser = OptionParser(description="Make tokens of a text, and leave them on disk.")
    parser.add_argument("text", type=Path, help="a file, or a directory of them")
    parser.add_argument("directory", type=Path, help="to write to")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json; None: one is made")
    parser.add_argument("--size", type=int, default=8192, metavar="N", help="different tokens of one that is made")
    options = parser.parse_args(sys.argv[1:])
    if rank() == 0:  # the others have nothing to do
        try:
            (options.directory / FACTS).unlink(missing_ok=True)
            print(write(options.text, options.directory, options.tokenizer, options.size))
        except OSError as error:
            raise InputError(str(error)) from None
    return 0


if __name__ == "__main__":
    finish(main)

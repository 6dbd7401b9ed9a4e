"""Reads files that grow: logs as text, JSON lines as objects."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

PIECE_BYTES = 1 << 20


class Tail:
    """Reads what has been appended to a file since the last read. The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._exists = False
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        return "".join(self.pieces())

    def skip_to_last(self, lines: int) -> None:
        """Leave out all but the last `lines` lines so far, of which an unfinished one is one. Reads them backwards."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(max(0, end - 1))
            ends = lines + (file.read(1) == b"\n")  # of lines to pass, up to the one before the first that counts
            while ends and end > self._position:
                begin = max(self._position, end - PIECE_BYTES)
                file.seek(begin)
                piece = file.read(end - begin)
                at, end = len(piece), begin
                while ends and (at := piece.rfind(b"\n", 0, at)) >= 0:
                    ends -= 1
                    end = begin if ends else begin + at + 1
            self._position = end

    def pieces(self) -> Iterator[str]:
        """The same piece by piece: at an attach, a log may have grown to any size."""
        self._exists = self._exists or is_listed(self._path)
        if not self._exists:
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                left = os.fstat(file.fileno()).st_size - self._position  # what is added meanwhile is for the next read
                while left > 0 and (added := file.read(min(left, PIECE_BYTES))):
                    left -= len(added)
                    self._position += len(added)
                    yield self._decoder.decode(added)
        except OSError:  # it does not exist yet, or its file system is away
            return


class Metrics:
    """Reads the records of a growing metrics.jsonl; lines that are not JSON objects are skipped."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._partial = ""

    def read(self) -> list[dict[str, Any]]:
        *lines, self._partial = (self._partial + self._tail.read()).split("\n")
        return [record for record in map(parse_object, lines) if record is not None]


def is_listed(path: Path) -> bool:
    """Whether a file exists, by the listing of its directory: clients of NFS and the like remember for up to a minute
    that a name is missing which was looked at, and show new ones in listings."""
    try:
        return path.name in os.listdir(path.parent)  # noqa: PTH208  # names alone
    except OSError:
        return False


def read_text(path: Path) -> str:
    """All of a file; "" if it does not exist, or its file system is away."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def parse_object(line: str) -> Optional[dict[str, Any]]:
    """The JSON object in a line; None for anything else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None

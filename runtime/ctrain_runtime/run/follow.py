"""Reads files that grow: a rank's log as text, metrics.jsonl as records."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any, Optional


class Tail:
    """What has been added to a file since the last look. The file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                added = file.read()
        except OSError:  # not there yet, or its file system is away for a moment
            return ""
        self._position += len(added)
        return self._decoder.decode(added)


class Metrics:
    """The records of a growing metrics.jsonl; a line that is no JSON object is left out."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._rest = ""

    def read(self) -> list[dict[str, Any]]:
        *lines, self._rest = (self._rest + self._tail.read()).split("\n")
        return [record for record in map(_record, lines) if record is not None]


def _record(line: str) -> Optional[dict[str, Any]]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.run import follow
from ctrain_runtime.run.follow import Metrics, Tail


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_a_tail_reads_what_was_added(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    assert tail.read() == ""
    append(tmp_path / "log", b"one\n")
    assert tail.read() == "one\n"
    assert tail.read() == ""
    append(tmp_path / "log", b"two")
    assert tail.read() == "two"


def test_a_letter_that_is_only_half_written_waits(tmp_path: Path) -> None:
    tail, letters = Tail(tmp_path / "log"), "█대"
    found = ""
    for byte in letters.encode():
        append(tmp_path / "log", bytes([byte]))
        found += tail.read()
        assert "\ufffd" not in found
    assert found == letters


def test_a_long_log_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PIECE_BYTES", 4)
    text = "line 대전\n" * 5
    append(tmp_path / "log", text.encode())
    tail = Tail(tmp_path / "log")
    pieces = tail.pieces()
    first = next(pieces)
    append(tmp_path / "log", b"added")
    rest = list(pieces)
    assert first + "".join(rest) == text and max(map(len, rest)) <= 4
    assert tail.read() == "added"


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    append(tmp_path / "log", b"a\xff\xfeb")
    assert Tail(tmp_path / "log").read() == "a\ufffd\ufffdb"


def test_metrics_are_whole_lines_that_are_records(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    assert metrics.read() == []
    append(path, b'{"step": 1}\n{"st')
    assert metrics.read() == [{"step": 1}]
    append(path, b'ep": 2}\n\n[1, 2]\nnull\nnot json\n\xff\n{"step": 3}\n')
    assert metrics.read() == [{"step": 2}, {"step": 3}]


def test_one_read_of_a_long_file_is_enough(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", b'{"step": 1}\n' * 10000)
    assert len(Metrics(tmp_path / "metrics.jsonl").read()) == 10000

from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.run import events
from ctrain_runtime.run.events import Event

WHOLE = """\
{"time": 100.5, "stage": "before", "node": "gpu01", "what": "started", "job": "41873"}
{"time": 101, "stage": "run", "node": "gpu01", "what": "started"}
{"time": 120.25, "stage": "after", "node": "gpu01", "what": "ended", "code": 3}
"""


def test_events_of_a_job(tmp_path: Path) -> None:
    assert events.read_job_events(tmp_path) == []
    (tmp_path / "events.jsonl").write_text(WHOLE)
    found = events.read_job_events(tmp_path)
    assert found[0] == Event("started", "before", "gpu01", 100.5, job="41873")
    assert (events.job_id(found), events.end_code(found)) == ("41873", 3)
    assert (events.job_id(found[1:]), events.end_code(found[:2])) == ("", None)


def test_a_line_counts_when_it_is_whole(tmp_path: Path) -> None:
    """A full disk or a killed node cuts the file off anywhere: `"code": 13` of 137 must not be read."""
    lines = WHOLE.splitlines()
    for length in range(len(WHOLE)):
        (tmp_path / "events.jsonl").write_text(WHOLE[:length])
        assert len(events.read_job_events(tmp_path)) == WHOLE[:length].count("\n")
    (tmp_path / "events.jsonl").write_text(f"{lines[0]}\n{lines[1][:20]}{lines[2]}\n{lines[2]}\n")
    assert [event.stage for event in events.read_job_events(tmp_path)] == ["before", "after"]


@pytest.mark.parametrize("line", ["", "null", "[]", "3", "{}", '{"what": 3}', "{'what': 'x'}", "\x00", "\ufffd"])
def test_other_lines_are_no_events(tmp_path: Path, line: str) -> None:
    (tmp_path / "events.jsonl").write_text(f"{line}\n{WHOLE}")
    assert len(events.read_job_events(tmp_path)) == 3


def test_values_of_a_wrong_type_are_left_out(tmp_path: Path) -> None:
    text = '{"what": "ended", "time": null, "rank": "0", "code": true, "node": 5, "message": []}\n'
    (tmp_path / "events.jsonl").write_text(text)
    assert events.read_job_events(tmp_path) == [Event("ended")]


def test_events_of_all_nodes(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    for node in range(11):
        text = f'{{"time": {node}, "stage": "run", "node": "n{node}", "what": "started", "rank": {node}}}\n'
        (tmp_path / f"nodes/{node}.jsonl").write_text(text)
    (tmp_path / "nodes/12.jsonl.swp").write_text("x\n")
    assert sorted(event.rank for event in events.read_node_events(tmp_path) if event.rank is not None) == [*range(11)]


def test_bytes_that_are_no_text_do_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\xff\xfe\n" + WHOLE.encode())
    assert events.end_code(events.read_job_events(tmp_path)) == 3

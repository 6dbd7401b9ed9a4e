"""benchmarks/restart.py without an image: what it starts, how it computes, and what it says about bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Optional

import pytest

from samples.benchmarks import load


@pytest.fixture(scope="module")
def restart() -> ModuleType:
    return load("restart")


def found(*_: object) -> SimpleNamespace:
    return SimpleNamespace(plain_argv=("apptainer", "exec", "x.sif"), path=Path("x.sif"))


@pytest.mark.parametrize(
    ("beyond", "library", "code", "tools"),
    [
        (2.5, Path("library"), 0, ["ctrain", "ctrain, torchrun", "torchrun", "ft_launcher"]),
        (5.1, None, 1, ["ctrain", "ctrain, torchrun", "torchrun"]),
    ],
)
def test_all_that_can_be_had_are_measured_in_turns(
    restart: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    beyond: float,
    library: Optional[Path],
    code: int,
    tools: list[str],
) -> None:
    rounds = iter([4.0, 30.0, 6.0])
    starts = [start for start in rounds for _ in tools]
    measured: list[str] = []

    def measure(_bench: object, tool: str) -> object:
        start = starts[len(measured)]
        measured.append(tool)
        never = tool == "torchrun" and start == 30.0  # its ranks did not meet
        return None if never else restart.Restart(start + beyond, start, 9.0, 5)

    monkeypatch.setattr(restart.image, "find", found)
    monkeypatch.setattr(restart, "install", lambda _: library)
    monkeypatch.setattr(restart.Bench, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["restart.py", "--json"])
    assert restart.main() == code
    assert measured == tools * 3
    *table, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    seconds = {**dict.fromkeys(tools, 6.0 + beyond), "torchrun": 5.0 + beyond}
    assert {name: row["seconds"] for name, row in result["tools"].items()} == seconds
    assert {name: row["failures"] for name, row in result["tools"].items() if row["failures"]} == {"torchrun": 1}
    assert result["tools"]["ctrain"]["beyond_start"] == beyond
    assert [line.split("  ")[0].strip() for line in table[1:-1]] == tools


def test_all_start_the_same_program_in_the_same_image(restart: ModuleType, tmp_path: Path) -> None:
    bench = restart.Bench(found(), Path("/library"))
    for tool in restart.ASKS:
        argv = bench.command(tool, tmp_path)
        assert argv[-2:] == [str(restart.PROGRAM), str(tmp_path)]
        assert any(word.endswith("x.sif") for word in argv)
        assert any(word.endswith("restarts=5") for word in argv)
    assert "PYTHONPATH=/library" in argv and restart.FT_LAUNCHER in argv


def test_a_half_written_step_is_none(restart: ModuleType, tmp_path: Path) -> None:
    assert restart.steps(tmp_path) == []
    (tmp_path / "steps.jsonl").write_text('{"step": 1}\n{"st')
    assert restart.steps(tmp_path) == [{"step": 1}]


@pytest.mark.parametrize(("argument", "code"), [("--rounds=0", 2), ("--image=nothing.sif", 77)])
def test_bad_input_is_one_line(
    restart: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argument: str,
    code: int,
) -> None:
    monkeypatch.setattr(sys, "argv", ["restart.py", argument])
    try:
        ended = restart.main()
    except SystemExit as end:
        ended = end.code
    assert ended == code
    assert capsys.readouterr().err.splitlines()[-1].startswith("restart.py: ")

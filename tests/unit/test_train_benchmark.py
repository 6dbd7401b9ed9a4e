"""benchmarks/train.py without an image: what it starts, how it computes, and what it says about bad input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from samples.benchmarks import BENCHMARKS, load

MACHINE = {"gpu": "", "devices": 2, "operations_per_second": 1e11, "images_per_second": 310.0}
STEP = {"seconds": 0.5, "seconds_outside_compute": 0.01, "host_memory": 6e8}


@pytest.fixture(scope="module")
def train() -> ModuleType:
    return load("train")


def run(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, plain_seconds: float, *words: str, **machine: Any
) -> tuple[int, list[list[str]]]:
    """main() on a machine where each step of an example takes 0.5 s; its exit code, and what it started."""
    started: list[list[str]] = []

    def output(argv: list[str]) -> str:
        started.append(argv)
        if "run" not in argv[:2]:
            lines = [{**MACHINE, **machine}] if "machine.py" in "".join(argv) else [{"seconds": plain_seconds}] * 6
            return "".join(f"{json.dumps(line)}\n" for line in lines)
        (runs,) = (word.partition("=")[2] for word in argv if word.startswith("--runs="))
        Path(runs, "run").mkdir()
        lines = [STEP, STEP, STEP, STEP, STEP, {**STEP, "seconds_outside_compute": 0.03}, {"step": 5, "val_loss": 2.0}]
        Path(runs, "run", "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return ""

    found = SimpleNamespace(plain_argv=("apptainer", "exec", "x.sif"), path=Path("x.sif"))
    monkeypatch.setattr(train.image, "find", lambda *_: found)
    monkeypatch.setattr(train, "output", output)
    monkeypatch.setattr(sys, "argv", ["train.py", "--json", *words])
    return int(train.main()), started


def test_one_rank_is_compared_with_the_plain_program_and_two_with_one(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, started = run(train, monkeypatch, 0.48, "--case", "gpt single", "--case", "gpt ddp")
    assert code == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["gpt", "single", "1"], ["gpt", "ddp", "2"]]
    assert lines[3] == (
        "a core decodes and augments 310 images/s: 8.0 cores feed 2470 images/s, 9.0 cores feed 2790 images/s, "
        "9.9 cores feed 3079 images/s"
    )
    summary = json.loads(last)
    one, two = summary["cases"].values()
    tokens = 4 * 2 * 2 * 64  # micro-batches, their sequences, ranks, characters
    assert (one["per_second"], one["plain"], one["ratio"]) == (tokens / 0.5, round(tokens / 0.48, 1), 0.96)
    assert (one["outside_ms"], one["checkpoint_ms"], one["memory_mb"]) == (10.0, 20, 600)
    assert (two["per_second"], two["scaling"], two["ratio"]) == (tokens / 0.5, 0.5, None)
    programs = [" ".join(argv).partition("plain/")[2].partition(" ")[0] or argv[2] for argv in started]
    assert programs == ["machine.py", *["gpt", "gpt.py"] * 2, "gpt"], "both take turns, twice"
    plain, example = started[2], started[1]
    assert plain[plain.index("--layers=4") :] == example[example.index("--") + 1 :], "the same settings"


def test_a_slower_example_misses_the_limit(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, started = run(train, monkeypatch, 0.47, "--case", "resnet50 ddp 1", "--rounds=1")
    assert code == 1
    assert capsys.readouterr().out.splitlines()[1].endswith("0.94           1.0             -  missed")
    assert "--strategy=ddp" in started[1] and "--image-size=64" in started[2]


@pytest.mark.parametrize(
    ("case", "size", "gpu", "speed", "share"),
    [
        ("resnet50 ddp 1", "marks", "NVIDIA H100 80GB HBM3", 2790, 1.0),
        ("resnet50 ddp 1", "marks", "NVIDIA A100-SXM4-80GB", 2223, 0.9),
        ("resnet50 ddp 1", "small", "NVIDIA H100 80GB HBM3", 2790, None),
        ("resnet50 ddp 2", "marks", "NVIDIA H100 80GB HBM3", 2790, None),
        ("resnet50 ddp 1", "marks", "Tesla K80", 2790, None),
        ("resnet50 ddp 1", "marks", "", 2790, None),
        ("gpt single 1", "marks", "NVIDIA H100 80GB HBM3", 0.21, 0.5),
        ("gpt single 1", "marks", "NVIDIA H100 80GB HBM3", None, None),
        ("gpt single 1", "marks", "NVIDIA A100-SXM4-80GB", 0.21, None),
    ],
)
def test_published_figures_are_marks_of_their_gpu(
    train: ModuleType, case: str, size: str, gpu: str, speed: float | None, share: float | None
) -> None:
    [chosen] = [each for each in train.cases(2) if str(each) == case]
    found = train.share_of_mark(chosen, size, {"per_second": speed, "mfu": speed}, gpu)
    assert found == share
    assert train.misses({"ratio": None, "of_mark": found}) == (share in (0.5, 0.9))
    assert train.misses({"ratio": 0.94, "of_mark": found})


def test_every_strategy_is_a_case(train: ModuleType) -> None:
    text = (BENCHMARKS.parent / "examples" / "gpt" / "config.py").read_text()
    [choices] = re.findall(r'"strategy": \((.*)\)', text)
    assert {case.strategy for case in train.cases(2) if case.example == "gpt"} == set(re.findall(r"\w+", choices))
    assert train.Case("gpt", "3d", 4) in train.cases(2) and train.Case("gpt", "3d", 8) in train.cases(8)


def test_operations_are_those_of_published_figures(train: ModuleType, tmp_path: Path) -> None:
    bench = train.Bench(None, tmp_path, "marks", 8)
    images, operations = bench.work(train.Case("resnet50", "ddp", 8))
    assert (images, round(operations / 1e9, 1)) == (256 * 8, 24.5)
    tokens, operations = bench.work(train.Case("gpt", "ddp", 8))
    assert tokens == 4 * 8 * 8 * 1024
    parameters, rest = 12 * 24 * 2048**2, 12 * 24 * 2048 * 1024  # nanoGPT: 6 N + 12 L d s per token
    assert operations == pytest.approx(6 * parameters + rest, rel=0.001)


@pytest.mark.parametrize(
    ("gpu", "peak"), [("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H200", 989e12), ("Tesla K80", None), ("", 1e11)]
)
def test_the_utilization_needs_a_peak(train: ModuleType, gpu: str, peak: float | None) -> None:
    assert train.peak_of({**MACHINE, "gpu": gpu}) == peak
    steps = [{"seconds": 1, "seconds_outside_compute": 0, "host_memory": 1}] * 5
    expected = 0.5 if peak else None
    assert train.compare([steps], [], 10, (peak or 0) / 20, peak)["mfu"] == expected


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--ranks=1"], 2, "--ranks must be at least 2"),
        (["--case=gpt dpp"], 2, "no such case. Cases: gpt single 1, gpt ddp 2"),
        (["--image=/nowhere/x.sif"], 77, "train.py: image file /nowhere/x.sif not found. Pass --image SIF"),
    ],
)
def test_what_cannot_be_measured_is_said(
    train: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    try:
        assert train.main() == code
    except SystemExit as end:
        assert end.code == code
    assert message in capsys.readouterr().err


def test_output_of_a_failure_is_shown(train: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"exit code 3: sh -c .*\nmemory is short\n"):
        train.output(["sh", "-c", "echo memory is short; exit 3"])

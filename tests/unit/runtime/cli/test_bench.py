"""`ctrain bench` with the fake engine, and a fake of the image's Python that measures nothing."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli.bench import plot
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.runs import Bench

PYTHON = """\
    #!/bin/sh
    [ "$RANK" = 0 ] || exit 0
    echo "table of $4 for $5"
    for bus in 0.5 1.0; do
      echo '{"operation": "all-reduce", "size": 1048576, "seconds": 0.001, "algorithm": 1.0, "bus": '$bus',
        "link": 1.25, "ranks": 2, "backend": "gloo"}' | tr -d '\\n' >>"$CTRAIN_RUN_DIR/bench.jsonl"
      echo >>"$CTRAIN_RUN_DIR/bench.jsonl"
    done
    exit "${CODE:-0}"
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    program = tmp_path / "bin/python3"
    program.write_text(textwrap.dedent(PYTHON))
    program.chmod(0o755)
    return bench


def run(bench: Bench, *arguments: str) -> tuple[int, str, str]:
    where = ("--site", "local", "--runs", str(bench.runs), "--name", "one", "--image", str(bench.image))
    started = bench.ctrain("bench", *where, "--ranks-per-node", "2", *arguments)
    out, error = started.communicate(timeout=60)
    return started.returncode, out, error


def test_the_table_of_rank_0_and_a_plot(bench: Bench) -> None:
    code, out, error = run(bench, "--sizes", "1024,1048576", "--operations", "all-reduce")
    assert code == 0, out + error
    *_, table, completed, directory, empty, head, bar = out.splitlines()
    assert table == "table of 1024,1048576 for all-reduce"
    assert completed.startswith("completed in ")
    assert directory == f"run directory: {bench.one}"
    assert (empty, head) == ("", "best bus bandwidth of 2 ranks by gloo; a node's links have 1.25 GB/s")
    assert bar == f"all-reduce  1.0 MB  {'█' * 32}{'░' * 8}  1.0 GB/s  80% of the link"


def test_json_has_all_measurements_and_stdout_nothing_else(bench: Bench) -> None:
    code, out, error = run(bench, "--json")
    assert code == 0, error
    answer = json.loads(out)
    assert (answer["run"], answer["exit_code"]) == (str(bench.one), 0)
    assert [line["bus"] for line in answer["results"]] == [0.5, 1.0]
    assert "table of 1024,8192" in error


def test_a_failed_run_shows_no_results(bench: Bench) -> None:
    code, out, _ = run(bench, "--env", "CODE=3")
    assert code == 3
    assert "best bus bandwidth" not in out
    assert out.splitlines()[-1] == f"run directory: {bench.one}"


def test_a_dry_run_shows_the_program(bench: Bench) -> None:
    code, out, _ = run(bench, "--dry-run")
    assert code == 0
    assert "--- collectives.py" in out
    assert not bench.runs.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--operations", "all-reduce,sum"), "unknown operation 'sum'. Operations: all-reduce, all-gather, "),
        (("--sizes", "1024,1MB"), "--sizes must be positive integers (bytes), not '1MB'. As in: --sizes 1024,1048576"),
        (("--save",), "--save needs an all-reduce on several nodes. Add: --nodes 2 --operations all-reduce"),
    ],
)
def test_what_cannot_be_measured(bench: Bench, arguments: tuple[str, ...], complaint: str) -> None:
    code, _, error = run(bench, *arguments)
    assert code == 64
    assert error.startswith(f"ctrain: {complaint}")


@pytest.mark.parametrize("options", [("--independent",), ("--launcher", "node")])
def test_what_forms_no_world_is_refused(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["bench", *options]) == 64
    assert capsys.readouterr().err.startswith("ctrain: bench measures ranks of one world. Leave out --independent")


def test_it_takes_no_job_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["resnet50"], ["--", "true"]):
        assert main(RUNTIME_VERBS, ["bench", *arguments]) == 64
    capsys.readouterr()


def test_a_plot_without_a_known_link_is_relative() -> None:
    line: dict[str, Any] = {"size": 8, "link": 0.0, "ranks": 4, "backend": "nccl"}
    results = [{**line, "operation": name, "bus": bus} for name, bus in (("broadcast", 2.0), ("all-reduce", 40.0))]
    head, first, second = plot(results, "#-").splitlines()
    assert head == "best bus bandwidth of 4 ranks by nccl"
    assert first.split() == ["all-reduce", "8", "B", "#" * 40, "40.0", "GB/s"]
    assert second.split() == ["broadcast", "8", "B", "##" + "-" * 38, "2.0", "GB/s"]

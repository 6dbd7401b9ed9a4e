"""Runs on this machine, to their end."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from ctrain_runtime.images import user_layer
from ctrain_runtime.store.manifest import read_manifest
from samples.estimates import TRAINING
from samples.layers import write_layer
from samples.runs import Bench, ended, wait_for

PROFILER = """
class Profiler:
    def start(self): pass
    stop = start
    def output_text(self, unicode, color): return "80% train"
    def output_html(self): return "<html>"
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_run_on_this_machine(bench: Bench) -> None:
    options = ("--nodes", "2", "--ranks-per-node", "2", "--env", "COLOUR=deep red")
    say = 'echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $NODE_RANK, $COLOUR"'
    code, out, error = ended(bench.run(*options, "--", "bash", "-c", say))
    assert (code, error) == (0, "")
    assert out.splitlines()[0] == "site      local (requested)"
    assert out.splitlines()[2] == "where     this machine: 2 groups of 2; 4 ranks, launcher mpirun"
    words, completed, *last = out.splitlines()[-3:]
    assert words == "rank 0 of 4, local 0 of 2, node 0, deep red"
    assert re.fullmatch(r"completed in \d+ s", completed)
    assert last == [f"run directory: {bench.runs}/one"]
    last = (bench.runs / "one/logs/rank3.log").read_text()
    assert last == "rank 3 of 4, local 1 of 2, node 1, deep red\n"
    assert bench.record()["exit"] == {"code": 0, "reason": "completed", "by": "program", "ending": "completed"}


def test_a_run_with_a_layer_says_so_in_its_record_and_checks_that_it_is_there(bench: Bench) -> None:
    """The fake engine mounts nothing."""
    path = write_layer(bench.folder / "my.sqsh", read_manifest(bench.image.with_suffix(".json")))
    code, out, _ = ended(bench.run("--layer", "my.sqsh", "--", "bash", "-c", "echo started"))
    assert code == 73
    assert f"layer {path} differs from the plan; was it rebuilt after submission?" in out
    assert bench.record()["layers"] == [{"path": str(path), "digest": user_layer.read(path).digest}]


def test_the_plan_of_a_dry_run_is_the_plan_of_the_run(bench: Bench) -> None:
    program = ("--ranks-per-node", "2", "--", "bash", "-c", "true")
    code, out, _ = ended(bench.run("--dry-run", "--json", *program))
    assert code == 0
    assert not bench.runs.exists()
    assert ended(bench.run(*program))[0] == 0
    assert json.loads(out) == json.loads((bench.runs / "one/plan.json").read_text(encoding="utf-8"))
    for name, text in json.loads(out)["scripts"].items():
        assert (bench.runs / "one" / name).read_text(encoding="utf-8") == text


def test_the_rank_that_is_chosen_is_profiled_by_its_heartbeats(bench: Bench) -> None:
    (bench.folder / "pyinstrument.py").write_text(PROFILER)
    text = "import os, sys; sys.path += [os.environ['CTRAIN_RUN_DIR'] + '/python', os.environ['HERE']]\n"
    program = ("--", sys.executable, "-c", text + "from ctrain_program import beat\nfor n in range(9): beat(n)")
    chosen = ("--profile", "pyinstrument", "--profile-ranks", "1", "--profile-steps", "2-3")
    size = ("--ranks-per-node", "2", "--launcher", "env", "--env", f"HERE={bench.folder}")
    code, out, error = ended(bench.run(*size, *chosen, *program))
    assert (code, error) == (0, "")
    folder = bench.runs / "one/profiles"
    assert out.splitlines()[-2] == f"profiles: {folder}; what took longest: ctrain report one"
    assert sorted(path.name for path in folder.iterdir()) == ["rank1.html", "rank1.txt"]


def test_a_failing_program_is_named_below_its_last_words(bench: Bench) -> None:
    code, out, error = ended(bench.run("--", "bash", "-c", "echo a; echo out of memory >&2; exit 12"))
    run = bench.runs / "one"
    assert (code, error) == (12, "")
    (first,) = bench.record()["nodes"]
    assert out.splitlines()[-5:] == [
        "a",
        "out of memory",  # and not once more below
        f"rank 0 on {first} failed first: exit code 12",
        f"its log: {run}/logs/rank0.log",
        f"run directory: {run}",
    ]


def test_json_is_the_record_and_nothing_else(bench: Bench) -> None:
    code, out, error = ended(bench.run("--json", "--", "bash", "-c", "echo from the program; exit 3"))
    assert code == 3
    assert json.loads(out) == bench.record()
    assert "from the program" in error


def test_what_was_estimated_is_compared_with_what_was_measured(bench: Bench) -> None:
    """There is no GPU here: the fake image has no CUDA, so no time is guessed."""
    (bench.folder / "job").mkdir()
    (bench.folder / "job/job.yaml").write_text(f"command: [bash, train.sh]\nimage: {bench.image}\n{TRAINING}")
    program = """echo '{"tokens_per_second": 32768, "memory": 3000000000}' > "$CTRAIN_RUN_DIR/metrics.jsonl"\n"""
    (bench.folder / "job/train.sh").write_text(program)
    code, out, error = ended(bench.ctrain(*bench.run_words(), "./job", "--estimate"))
    assert (code, error) == (0, "")
    assert "\nestimate  time per step unknown: image without CUDA, or not a GPU of a known type for each rank\n" in out
    compared = [
        "                 estimated  measured",
        "time per step    -          2.00 s",
        "tokens/s         -          32,768",
        "memory per rank  9.6 GB     3.0 GB",
        f"run directory: {bench.one}",
    ]
    assert out.splitlines()[-5:] == compared
    record = bench.record()
    assert record["measured"] == {"tokens_per_second": 32768.0, "memory": 3000000000}
    assert record["estimate"]["tokens"] == 65536
    assert ended(bench.attach())[1].splitlines()[-5:] == compared


def test_resume_shows_the_checkpoint_of_the_earlier_run(bench: Bench) -> None:
    old = bench.folder / "old/checkpoint"
    old.mkdir(parents=True)
    (old / "step-1").touch()
    code, out, _ = ended(bench.run("--resume", "old", "--", "bash", "-c", 'echo "resume $CTRAIN_RESUME"'))
    assert code == 0
    assert f"data      {old} -> /resume (read-only)" in out.splitlines()
    assert "resume /resume" in out.splitlines()


def test_a_job_ends_its_lease_whoever_is_gone(bench: Bench) -> None:
    leases = bench.image.parent / "in-use"
    leases.mkdir()
    go = bench.folder / "go"
    run = bench.run("--", "bash", "-c", f'touch "$CTRAIN_RUN_DIR/up"; until [ -e {go} ]; do sleep 0.05; done')
    wait_for(bench.one / "up")
    assert len(list(leases.iterdir())) == 1
    run.kill()
    ended(run)
    go.touch()
    wait_for(lambda: not list(leases.iterdir()))
    assert bench.record()["exit"] is None  # nobody has looked yet

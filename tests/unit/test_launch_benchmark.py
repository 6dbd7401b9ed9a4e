"""benchmarks/launch.py without its cluster: how it computes, and what it says where it cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from samples.benchmarks import load
from samples.runs import wait_for

# As of tests/cluster, but everything runs right here: srun starts its command, ctrain leaves what a run leaves.
PROGRAMS = {
    "cluster": 'while [ "$1" != -- ]; do shift; done; shift; HOME=$(dirname "$0") PATH=$HOME:$PATH exec "$@"',
    "squeue": "",
    "salloc": 'while [ "$1" != sh ]; do shift; done; SLURM_JOB_ID=7 exec "$@"',
    "srun": 'echo "output of the program"',
    "ctrain": """
for word; do case $word in --runs=*) run=${word#*=}/one ;; esac; done
mkdir -p "$run" && : >"$run/plan.json"
mkdir "$run/nodes" && : >"$run/.submit"
event() { printf '{"time": %s, "stage": "%s", "what": "%s", "rank": 0}\\n' "$(date +%s.%N)" "$1" "$2"; }
{ event before started; event run started; } >"$run/events.jsonl"
event run started >"$run/nodes/0.jsonl"
echo "site      generic-slurm"; echo "output of the program"
echo "$SLURM_JOB_ID" >>"${run%/*}.allocations"
event run ended >>"$run/nodes/0.jsonl"
event after ended >>"$run/events.jsonl"
""",
}


@pytest.fixture(scope="module")
def launch() -> ModuleType:
    return load("launch")


def figures(launch: ModuleType, place: str = "sbatch", queued: float = 0.5) -> dict[str, float]:
    bare = [launch.Times(10, 10.5, 10.7), launch.Times(20, 20.4, 20.6), launch.Times(30, 39, 40)]
    own = [launch.Times(10, 11.3, 11.7), launch.Times(20, 21.2, 21.6), launch.Times(30, 31.4, 31.9)]
    return dict(launch.compare(bare, own, [launch.Phases(0.3, queued, 0, 0.1, 0.6, 0, 0.1)] * 3, place))


def test_medians_are_compared_and_the_wait_of_slurm_is_taken_off(launch: ModuleType) -> None:
    result = figures(launch)
    assert (result["bare_s"], result["ctrain_s"], result["extra_s"]) == (0.7, 1.7, 1.0)
    assert (result["bare_first_output_s"], result["ctrain_first_output_s"]) == (0.5, 1.3)
    assert (result["own_extra_s"], result["own_first_output_extra_s"]) == (0.5, 0.3)
    assert (result["ratio"], result["own_ratio"]) == (2.43, 1.71)


def test_in_an_allocation_nothing_is_taken_off(launch: ModuleType) -> None:
    result = figures(launch, "allocation")
    assert (result["own_extra_s"], result["own_ratio"]) == (result["extra_s"], result["ratio"])


def test_the_summary_is_the_worst_case(launch: ModuleType) -> None:
    slow = {**figures(launch), "own_extra_s": 9.0}
    result = launch.summary({"trivial": figures(launch), "torch": slow}, 7)
    assert (result["own_extra_s"], result["ratio"], result["repetitions"]) == (9.0, 2.43, 7)
    assert result["cases"]["torch"] == slow


def test_the_table_marks_what_is_above_the_limit(launch: ModuleType) -> None:
    lines = launch.table({"sbatch mpi trivial": figures(launch)}).splitlines()
    assert [line.split()[0] for line in lines if "missed" in line] == ["end"]  # 0.5 s more; the first output 0.3 s


@pytest.mark.parametrize(
    ("bare", "extra", "missed"), [(1, 0.3, False), (1, 0.31, True), (10, 0.5, False), (10, 0.51, True)]
)
def test_the_limit_is_a_time_or_a_share(launch: ModuleType, bare: float, extra: float, missed: bool) -> None:
    assert launch.misses({"bare_s": bare, "own_extra_s": extra}) is missed


def test_phases_come_from_what_the_run_left(launch: ModuleType, tmp_path: Path) -> None:
    (tmp_path / ".submit").touch()
    os.utime(tmp_path / ".submit", (100.5, 100.5))
    (tmp_path / "nodes").mkdir()
    job = [(101, "before", "started"), (101.25, "run", "started"), (104, "after", "ended")]
    ranks = [(102.5, "run", "started"), (102, "run", "started"), (103, "run", "ended"), (103.5, "run", "ended")]
    for name, events in (("events.jsonl", job), ("nodes/0.jsonl", ranks)):
        lines = [json.dumps({"time": time, "stage": stage, "what": what, "rank": 0}) for time, stage, what in events]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    phases = launch.phases_of(launch.Times(100, 102, 104.25), tmp_path)
    assert phases == launch.Phases(0.5, 0.5, 0.25, 0.75, 1.5, 0.5, 0.25)


@pytest.mark.parametrize(
    ("launcher", "tasks", "mpi"), [("mpi", 4, "pmix"), ("gloo", 4, "none"), ("torchrun", 2, "none")]
)
def test_bare_srun_starts_what_the_plan_of_ctrain_starts(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, launcher: str, tasks: int, mpi: str
) -> None:
    monkeypatch.setattr(launch, "plain_argv", lambda: ("apptainer", "exec", "image.sif"))
    argv = launch.srun(launch.LAUNCHERS[launcher])
    assert {f"--ntasks={tasks}", f"--cpus-per-task={4 // tasks}", f"--mpi={mpi}"} <= set(argv)


def test_horovod_has_its_server_before_its_ranks_and_not_after_them(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    programs = {
        "apptainer": 'trap "exec touch $HOME/ended" TERM; echo 4321; while :; do sleep 0.02; done',
        "srun": 'echo "$HOROVOD_GLOO_RENDEZVOUS_PORT $#"; exit 3',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(launch, "plain_argv", lambda: ("apptainer", "exec", "image.sif"))
    argv = launch.srun(launch.LAUNCHERS["gloo"])
    environ = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, text=True)
    ranks = argv[argv.index("srun") + 1 :]
    assert (done.returncode, done.stdout) == (3, f"4321 {len(ranks)}\n")
    wait_for(tmp_path / "ended")


def test_without_root_one_line_says_so(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["launch.py"])
    assert launch.main() == 77
    assert capsys.readouterr().err == "launch.py: it must run as root, for the test cluster\n"


def test_without_the_cluster_one_line_names_the_command(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster"
    cluster.write_text("#!/bin/sh\nexit 3\n")
    cluster.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(launch, "CLUSTER", cluster)
    assert launch.missing().endswith("Start it with: tests/cluster/cluster up")


def test_both_commands_take_turns_and_the_last_line_is_json(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(launch, "CLUSTER", tmp_path / "cluster")
    monkeypatch.setattr(
        launch,
        "session",
        lambda *argv, variables=(): [str(tmp_path / "cluster"), "run", "--", "env", *variables, *argv],
    )
    monkeypatch.setattr(launch, "missing", lambda: "")
    monkeypatch.setattr(launch, "plain_argv", lambda: ("apptainer", "exec", "image.sif"))
    monkeypatch.setattr(launch, "REST_SECONDS", 0)
    monkeypatch.setattr(
        sys, "argv", ["launch.py", "--repetitions", "1", "--json", "--launcher", "gloo", "--launcher", "mpi"]
    )
    launch.main()
    *_, limit, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert limit.endswith("0.3 s, or 5% of the bare command")
    assert {"ratio", "extra_s", "own_extra_s", "first_output_extra_s", "load"} <= result.keys()
    cases = ["allocation mpi trivial", "allocation gloo trivial", "allocation mpi torch", "sbatch mpi trivial"]
    assert list(result["cases"]) == cases
    [allocations] = tmp_path.glob("launch-*.allocations")
    assert allocations.read_text().split("\n") == [*["7"] * 6, "", "", ""]  # two runs of each case; by sbatch without
    allocations.unlink()
    assert not list(tmp_path.glob("launch-*"))  # the runs are removed


def test_a_program_that_fails_ends_it_with_its_output(launch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "wait_until_idle", lambda: None)
    monkeypatch.setattr(launch, "session", lambda *argv, **_: list(argv))
    with pytest.raises(SystemExit, match=r"(?s)failed with exit code 3:.*no such node"):
        launch.run_timed(("sh", "-c", "echo no such node; exit 3"), ())

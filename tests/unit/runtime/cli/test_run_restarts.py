"""Runs that go on after a failure, on this machine, the toy and PBS; what users see of it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.runs import Bench, ended, wait_for

TWO = ("--ranks-per-node", "2", "--launcher", "env")
# Rank 0 counts steps up to 3 and saves each. In the first attempt, the last rank is killed when step 1 is saved.
TRAIN = """
import os, signal, sys, time
from pathlib import Path
run, rank, attempt = Path(os.environ["CTRAIN_RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["CTRAIN_ATTEMPT"])
resume, saved = os.environ.get("CTRAIN_RESUME"), run / "checkpoint/step"
step = int((Path(resume) / "step").read_text()) if resume else 0
print(f"attempt {attempt} begins with step {step}", flush=True)
while rank == 0 and step < 3:
    step += 1
    (run / "checkpoint/new.tmp").write_text(str(step))
    (run / "checkpoint/new.tmp").replace(saved)
    if attempt == 0:
        time.sleep(0.5 if "all" in sys.argv else 60)
while attempt == 0 and not saved.exists():
    time.sleep(0.02)
if attempt == 0 and ("all" in sys.argv or rank == int(os.environ["WORLD_SIZE"]) - 1):
    os.kill(0 if "all" in sys.argv else os.getpid(), signal.SIGKILL)
time.sleep(0 if attempt else 60)
print("done", flush=True)
"""
FAILS = ("--", "bash", "-c", 'echo "$CTRAIN_ATTEMPT"; exit 3')


@pytest.fixture
def site() -> str:
    return "local"


@pytest.fixture
def bench(tmp_path: Path, site: str) -> Iterator[Bench]:
    bench = Bench(tmp_path, site)
    (tmp_path / "train.py").write_text(TRAIN)
    yield bench
    bench.end()


def program_lines(bench: Bench, rank: int) -> list[str]:
    return [line for line in bench.log(rank).splitlines() if line]


@pytest.mark.parametrize(
    ("site", "options", "last"),
    [
        ("local", TWO, 1),
        ("local", ("--ranks-per-node", "2", "--launcher", "torchrun"), 1),
        ("local", ("--ranks-per-node", "2", "--launcher", "mpi"), 1),
        ("pbs", (*TWO, "--nodes", "2", "--gpus-per-node", "0", "--preflight", "off"), 3),
        ("pals", (*TWO, "--nodes", "2", "--gpus-per-node", "0", "--preflight", "off"), 3),
    ],
)
def test_a_rank_that_is_killed(bench: Bench, options: tuple[str, ...], last: int) -> None:
    code, out, error = ended(bench.run(*options, "--restarts", "2", "--", "python3", "train.py"))
    assert (code, error) == (0, ""), out
    (restart,) = bench.record()["restarts"]
    reason = f"rank {last} on {bench.record()['nodes'][-1]} failed: signal 9 (killed)"
    assert (restart["attempt"], restart["reason"], restart["code"]) == (1, reason, 137)
    shown = out.splitlines()
    at = shown.index(f"{reason}; restarting from the last checkpoint (1 of 2)")
    assert (shown[at - 1], shown[at + 1 : at + 3]) == (
        "attempt 0 begins with step 0",
        ["attempt 1 begins with step 1", "done"],
    )
    (completed,) = (line for line in shown if line.startswith("completed in "))
    assert completed.endswith(", with 1 restart")
    assert re.sub("step .", "step", "\n".join(program_lines(bench, last))) == (
        "attempt 0 begins with step\n--- attempt 1 ---\nattempt 1 begins with step\ndone"
    )
    assert bench.record()["exit"] == {"code": 0, "reason": "completed", "by": "program", "ending": "completed"}
    assert len(bench.record()["attempts"]) == 1
    assert not bench.orphans()


def test_a_rank_that_is_killed_with_all_its_processes(bench: Bench) -> None:
    """Nobody records its end."""
    code, out, _ = ended(bench.run(*TWO, "--restarts", "1", "--", "python3", "train.py", "all"))
    assert code == 0, out
    why = "no exit status (node failed, or all its processes were killed)"
    assert bench.record()["restarts"][0]["reason"].endswith(f" failed: {why}")


def test_a_crash_loop_is_named(bench: Bench) -> None:
    code, out, _ = ended(bench.run(*TWO, "--restarts", "5", *FAILS))
    assert code == 3
    assert "failed first: exit code 3; crash loop: two failures before any progress\n" in out
    assert len(bench.record()["restarts"]) == 1
    assert "(1 of 5)" in out
    assert "--- attempt" not in out


def test_the_last_words_of_a_rank_are_those_of_its_last_attempt(bench: Bench) -> None:
    program = 'echo "{}" >>"$CTRAIN_RUN_DIR/metrics.jsonl"; [ "$RANK" = 1 ] || sleep 60; echo "$CTRAIN_ATTEMPT"; exit 3'
    _, out, _ = ended(bench.run(*TWO, "--restarts", "1", "--", "bash", "-c", program))
    assert "; restarts used: 1 of 1\n  | 1\nits log: " in out


def test_a_program_that_never_started_is_not_restarted(bench: Bench) -> None:
    code, out, _ = ended(bench.run(*TWO, "--restarts", "2", "--", "gone"))
    assert code == 127
    assert "command not found in the image: gone" in out
    assert bench.record()["restarts"] == []


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_a_run_that_is_cancelled_while_it_restarts(bench: Bench, number: signal.Signals, times: int) -> None:
    run = bench.run(*TWO, "--restarts", "2", "--", "bash", "-c", 'touch "$CTRAIN_RUN_DIR/failed"; exit 3')
    wait_for(bench.one / "failed")
    for _ in range(times):
        os.kill(run.pid, number)
    code, out, _ = ended(run)
    assert code == 130, out
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert not bench.orphans()


def test_a_run_that_is_cancelled_in_its_second_attempt(bench: Bench) -> None:
    program = 'touch "$CTRAIN_RUN_DIR/up$CTRAIN_ATTEMPT"; [ "$CTRAIN_ATTEMPT" = 0 ] || sleep 600; exit 3'
    run = bench.run(*TWO, "--restarts", "2", "--", "bash", "-c", program)
    wait_for(bench.one / "up1")
    listed = ended(bench.ctrain("runs", "--site", bench.site, "--runs", str(bench.runs)))[1]
    assert "running, 1 restart" in listed
    os.kill(run.pid, signal.SIGINT)
    assert ended(run)[0] == 130
    assert bench.ending()["ending"] == "cancelled"
    assert len(bench.record()["restarts"]) == 1
    listed = ended(bench.ctrain("runs", "--site", bench.site, "--runs", str(bench.runs)))[1]
    assert "cancelled, 1 restart" in listed
    assert not bench.orphans()


def test_sigterm_to_the_job_in_a_restart_ends_it(bench: Bench) -> None:
    run = bench.run(*TWO, "--restarts", "2", "--", "bash", "-c", "exit 3")
    wait_for(lambda: '"code": 3' in "".join(path.read_text() for path in bench.one.glob("nodes/*.jsonl")))
    for _ in range(2):
        os.kill(bench.job_process(), signal.SIGTERM)
    code, out, _ = ended(run)
    assert (code, bench.record()["exit"]["ending"]) == (3, "interrupted"), out
    assert bench.record()["restarts"] == []


def test_attach_shows_the_restarts_of_a_run_in_their_places(bench: Bench) -> None:
    _, shown, _ = ended(bench.run(*TWO, "--restarts", "2", "--", "python3", "train.py"))
    code, out, _ = ended(bench.attach())
    assert code == 0

    def end(text: str) -> list[str]:
        lines = text.splitlines()
        return lines[next(number for number, line in enumerate(lines) if line.startswith("completed")) :]

    assert end(out) == end(shown)


def test_a_job_says_how_often_it_may_be_restarted(bench: Bench) -> None:
    (bench.folder / "job").mkdir()
    job = bench.folder / "job/job.yaml"
    job.write_text(f"command: [bash, -c, 'true']\nimage: {bench.image}\nrestarts: 4\n")
    words = [word for word in bench.run_words() if word not in ("--image", str(bench.image))]
    code, out, _ = ended(bench.ctrain(*words, "./job", "--dry-run"))
    assert code == 0
    row = "restarts  up to 4, in the same job and from its last checkpoint, if a rank fails"
    assert row in out.splitlines()
    assert "\nrun_job_with_restarts 4 tasks 0 1 task.sh\n" in out
    plan = json.loads(ended(bench.ctrain(*words, "./job", "--dry-run", "--json", "--restarts", "0"))[1])["plan"]
    assert plan["program"]["restarts"] == 0
    job.write_text(job.read_text().replace("restarts: 4", "restarts: -1"))
    error = ended(bench.ctrain(*words, "./job", "--dry-run"))[2]
    assert error == f"ctrain: {job}: restarts must be an integer of at least 0, not -1\n"
    error = ended(bench.run("--restarts", "-1", "--", "true"))[2]
    assert error == "ctrain: --restarts must be an integer of at least 0, not -1\n"

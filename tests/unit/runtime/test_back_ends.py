"""The same runs on back ends with a queue: the toy's; PBS's, with tasks by TM and by mpiexec (samples/pbs_stand_in)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.runs import Bench, ended, wait_for

FOUR = ("--nodes", "2", "--ranks-per-node", "2", "--gpus-per-node", "0", "--preflight", "off")
PRINT_RANK = 'echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $NODE_RANK"'
JOB = {"toy": ("1", "toy 1"), "pbs": ("1.login01", "job 1"), "pals": ("1.login01", "job 1")}
SLOW = {
    "toy": ("--scheduler-option=--slow", "toy/1.slow", "toy/1.go"),
    "pbs": ("--preflight=off", "pbs/slowly", "pbs/go"),
}
REFUSED = {
    "toy": ("--refuse", "the toy rejected the job", "Leave out --refuse"),
    "pbs": ("-l nosuchres=3", "qsub rejected the job: Unknown resource Resource_List.nosuchres", "Script: "),
}


@pytest.fixture(params=["toy", "pbs", "pals"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, request.param)
    yield bench
    bench.end()


def name(bench: Bench) -> str:
    return Path(bench.site).stem


@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_a_run_from_start_to_end(bench: Bench, launcher: str) -> None:
    code, out, error = ended(bench.run(*FOUR, "--launcher", launcher, "--", "bash", "-c", PRINT_RANK))
    assert (code, error) == (0, "")
    assert out.splitlines()[-1] == f"run directory: {bench.one}"
    for rank in range(4):
        assert bench.log(rank) == f"rank {rank} of 4, local {rank % 2} of 2, node {rank // 2}\n"
    assert sorted(path.name for path in bench.one.glob("nodes/*")) == ["0.jsonl", "1.jsonl"]
    assert bench.record()["exit"] == {"code": 0, "reason": "completed", "by": "program", "ending": "completed"}
    (attempt,) = bench.record()["attempts"]
    assert (attempt["job_id"], attempt["name"]) == JOB[name(bench)]
    assert attempt["outcome"] == "completed"


@pytest.mark.parametrize("launcher", ["env", "torchrun"])
def test_the_rank_that_failed_first_is_named_not_its_task(bench: Bench, launcher: str) -> None:
    """Rank 3 is the second rank of the second task under torchrun, the fourth task under env. It fails once all are up:
    those that a busy machine has not started by then never do."""
    seconds = 0 if name(bench) == "toy" else 600  # the toy ends no others
    failed = 'grep -qs "\\"code\\": 9" "$CTRAIN_RUN_DIR"/nodes/*'
    rest = f"until {failed}; do sleep 0.05; done; sleep {seconds}"
    others = "[ -e up0 ] && [ -e up1 ] && [ -e up2 ]"
    all_up = f'cd "$CTRAIN_RUN_DIR" && touch "up$RANK"; until {others}; do sleep 0.05; done'
    program = f'{all_up}; if [ "$RANK" = 3 ]; then echo out of memory; exit 9; fi; {rest}'
    code, out, _ = ended(bench.run(*FOUR, "--launcher", launcher, "--", "bash", "-c", program))
    (host,) = bench.record()["nodes"]
    reason = f"rank 3 on {host} failed first: exit code 9"
    assert (code, bench.record()["exit"]) == (9, {"code": 9, "reason": reason, "by": "program", "ending": "failed"})
    assert "  | out of memory" in out.splitlines()
    fates = "" if name(bench) == "toy" else "3 other ranks stopped"
    assert any(line.startswith(f"its log: {bench.one}/logs/rank3.log; {fates}") for line in out.splitlines())
    assert not bench.orphans()


def test_submit_attach_runs_and_cancel(bench: Bench) -> None:
    program = ("--launcher", "env", "--", "bash", "-c", 'touch "$CTRAIN_RUN_DIR/up$RANK"; sleep 600')
    code, out, _ = ended(bench.run(*FOUR, *program, verb="submit"))
    assert code == 0
    job = JOB[name(bench)][1]
    assert out.splitlines()[-1] == f"submitted as {job}; watch it with: ctrain attach {bench.one}"
    for rank in range(4):
        wait_for(bench.one / f"up{rank}")
    out = ended(bench.ctrain("runs", "--site", bench.site, "--runs", str(bench.runs)))[1]
    assert out.splitlines()[1].split()[:4] == ["one", "running", *job.split()]
    code, out, _ = ended(bench.attach(verb="cancel", run="last"))
    assert code == 0
    assert f"cancelling {job} ..." in out.splitlines()
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert bench.record()["attempts"][0]["outcome"] == "cancelled by its user"
    assert not bench.orphans()
    again = f"one has already ended: {bench.record()['exit']['reason']}\n"
    assert ended(bench.attach(verb="cancel"))[:2] == (0, again)
    code, out, _ = ended(bench.attach("--json"))
    assert (code, json.loads(out)) == (130, bench.record())


@pytest.mark.parametrize("bench", ["pbs", "pals"], indirect=True)
@pytest.mark.parametrize(("mode", "ends"), [("strict", 80), ("warn", 0)])
def test_a_preflight_meets_before_the_ranks_start(bench: Bench, mode: str, ends: int) -> None:
    """Its two nodes are this machine, and both say so: a strict one does not let the program start."""
    options = ("--preflight", mode, "--launcher", "env", "--env", "GLOO_SOCKET_IFNAME=lo")
    code, out, _ = ended(bench.run(*FOUR, *options, "--", "bash", "-c", "echo ran"))
    host, found = os.uname().nodename.partition(".")[0], bench.record()["preflight"]
    problem = f"{host}: other nodes cannot reach its address 127.0.0.1 (interface lo of GLOO_SOCKET_IFNAME)"
    assert (code, found.count(problem)) == (ends, 1)
    assert not any(message.startswith("0 of") for message in found), "PBS knows the nodes by other names"
    assert f"preflight: {problem}" in out
    ran = [path for path in bench.one.glob("logs/rank*.log") if path.stat().st_size]
    assert len(ran) == (0 if mode == "strict" else 4)
    assert not bench.orphans()


@pytest.mark.parametrize("bench", ["toy", "pbs"], indirect=True)
def test_a_job_that_is_refused(bench: Bench) -> None:
    option, reason, hint = REFUSED[name(bench)]
    code, _, error = ended(bench.run("--launcher", "env", f"--scheduler-option={option}", "--", "true"))
    assert (code, error.startswith(f"ctrain: {reason}. {hint}"), error.count("\n")) == (72, True, 1)
    assert bench.record()["exit"] == {"code": 72, "reason": reason, "by": "ctrain", "ending": "never started"}
    assert bench.record()["attempts"] == []
    code, out, _ = ended(bench.attach())
    assert (code, out.splitlines()[0]) == (72, reason)


def begin_slowly(bench: Bench, *program: str) -> subprocess.Popen[str]:
    """A run whose submission has begun, and goes on when the test says so."""
    option, sign, _ = SLOW[name(bench)]
    if name(bench) == "pbs":
        (bench.folder / "pbs/slow").touch()
    run = bench.run("--launcher", "env", option, "--", *program)
    wait_for(bench.folder / sign)
    return run


def end_submission(bench: Bench) -> None:
    (bench.folder / SLOW[name(bench)][2]).touch()


@pytest.mark.parametrize("bench", ["toy", "pbs"], indirect=True)
def test_ctrl_c_during_the_submission_cancels_the_job(bench: Bench) -> None:
    run = begin_slowly(bench, "sleep", "600")
    run.send_signal(signal.SIGINT)
    end_submission(bench)
    code, _, error = ended(run)
    assert (code, error) == (130, "")
    assert bench.ending() == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    assert not bench.orphans()


def waits_for_a_lock(pid: int) -> bool:
    """proc(5), locks: `12: -> FLOCK  ADVISORY  WRITE PID ...` waits for lock 12."""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return ["->", str(pid)] in [[words[1], words[5]] for words in locks if len(words) > 5]


@pytest.mark.parametrize("bench", ["toy", "pbs"], indirect=True)
def test_a_kill_during_the_submission_loses_nothing(bench: Bench) -> None:
    """The scheduler's command is still at work when its ctrain is gone: attach waits for it, and finds the job."""
    run = begin_slowly(bench, "echo", "ran")
    run.kill()
    run.wait()
    attach = bench.attach()
    wait_for(lambda: waits_for_a_lock(attach.pid))
    end_submission(bench)
    code, _, error = ended(attach)
    ended(run)  # whose output the scheduler's command had
    assert (code, error, bench.log(0)) == (0, "", "ran\n")
    assert bench.record()["attempts"][0]["job_id"] == JOB[name(bench)][0]

"""Runs of the real Slurm whose jobs meet their time limit: one goes on, one is cancelled; and that lose their node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.cluster import ENTRY, Cluster, until
from samples.long_mode import LONG

RUN = ("--nodes", "1", "--image", "pytorch-cpu", "--preflight", "off", "--launcher", "env", "--ranks-per-node", "1")
STEPS, SAVED_EVERY, WAITS_AFTER = 40, 10, 25
# A curve that depends on all steps before. Its first attempt does not end by itself.
PROGRAM = f"""
import json, os, time
run, resume = os.environ["CTRAIN_RUN_DIR"], os.environ.get("CTRAIN_RESUME")
step, loss = json.load(open(resume + "/state.json")) if resume else (0, 8.0)
while step < {STEPS}:
    step, loss = step + 1, loss * 0.9 + 0.01 * (step % 7)
    with open(run + "/metrics.jsonl", "a") as metrics:
        print(json.dumps(dict(step=step, steps={STEPS}, loss=loss)), file=metrics)
    if step % {SAVED_EVERY} == 0:
        json.dump((step, loss), open(run + "/checkpoint/state.tmp", "w"))
        os.replace(run + "/checkpoint/state.tmp", run + "/checkpoint/state.json")
    if step == {WAITS_AFTER} and os.environ["CTRAIN_ATTEMPT"] == "0":
        time.sleep(600)
"""


def losses(run: Path) -> list[tuple[int, float]]:
    """(step, loss) in the order of their writing; the last line may be half-written."""
    text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
    return [(line["step"], line["loss"]) for line in map(json.loads, text[: text.rfind("\n") + 1].splitlines())]


def state(cluster: Cluster, job: str) -> str:
    return cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%T").stdout.strip()


def test_a_time_limit_is_outlived_and_a_cancellation_is_the_end(cluster: Cluster) -> None:
    cluster.write("train.py", PROGRAM)
    started = cluster.start("ctrain", "run", *RUN, "--retries", "1", "--name", "outlives", "--", "python", "train.py")
    wait = ("ctrain", "submit", *RUN, "--until-done", "--name", "waits", "--", "sleep", "600")
    assert cluster.run(*wait).returncode == 0
    run, events = cluster.runs("outlives"), cluster.runs("waits") / "events.jsonl"
    until(lambda: len(losses(run)) == WAITS_AFTER, "the steps of the first attempt", 200)
    until(lambda: '"stage": "run"' in events.read_text(), "the start of the other", 200)
    jobs = {name: str(cluster.record(name)["attempts"][0]["job_id"]) for name in ("outlives", "waits")}
    for job in jobs.values():
        cluster.administer("scontrol", "update", f"JobId={job}", "EndTime=now+1")
    for job in jobs.values():
        until(lambda: state(cluster, job) == "PENDING", f"job {job} in the queue again", 120)  # noqa: B023  # it is called here

    assert cluster.run("ctrain", "status", "waits").stdout.splitlines()[1].startswith("state     waiting")
    assert cluster.run("ctrain", "cancel", "waits").returncode == 0
    ended = cluster.record("waits")
    assert (ended["exit"]["ending"], ended["exit"]["code"]) == ("cancelled", 130)
    assert [(made["outcome"], made["word"]) for made in ended["attempts"]] == [
        ("requeued", "time limit"),
        ("cancelled by its user", "CANCELLED"),
    ]
    assert state(cluster, jobs["waits"]) in ("", "CANCELLED")

    cluster.administer("scontrol", "update", f"JobId={jobs['outlives']}", "StartTime=now")  # else in two minutes
    output, _ = started.communicate(timeout=300)
    assert started.returncode == 0, output
    went_on = f"job {jobs['outlives']} was queued again: time limit; going on from the last checkpoint\n"
    assert went_on in output and ", with 1 restart" in output, output
    record = cluster.record("outlives")
    assert (record["exit"]["ending"], len(record["attempts"])) == ("completed", 2)
    assert [made["job_id"] for made in record["attempts"]] == [jobs["outlives"]] * 2
    curve = losses(run)
    saved = WAITS_AFTER // SAVED_EVERY * SAVED_EVERY
    assert [step for step, _ in curve] == [*range(1, WAITS_AFTER + 1), *range(saved + 1, STEPS + 1)]
    assert curve[saved:WAITS_AFTER] == curve[WAITS_AFTER : 2 * WAITS_AFTER - saved], "the same losses again"


SUBMIT = ("ctrain", "submit", *RUN)
GOES_ON = ("--retries", "1", "--", "bash", "-c", '[ "$CTRAIN_ATTEMPT" = 1 ] || sleep 600')


def started_on(cluster: Cluster, name: str, node: int = 0) -> str:
    """The node on which the program of a run has started, of its first node by default."""
    events = cluster.runs(name) / f"nodes/{node}.jsonl"
    until(lambda: '"what": "started"' in events.read_text(), f"the start of {name}", 200)
    return str(json.loads(events.read_text().splitlines()[0])["node"])


@pytest.mark.skipif(not LONG, reason="at night: Slurm takes half a minute to notice a dead node")
def test_a_lost_node_and_a_preemption(cluster: Cluster) -> None:
    assert cluster.run(*SUBMIT, "--name", "lost", *GOES_ON).returncode == 0
    lost = started_on(cluster, "lost")
    assert cluster.run(*SUBMIT, "--partition", "spot", "--name", "preempted", *GOES_ON).returncode == 0
    other = started_on(cluster, "preempted")
    assert other != lost
    try:
        subprocess.run([ENTRY, "kill-node", lost], check=True)
        cluster.start("srun", "--partition=cas_v100_2", f"--nodelist={other}", "--ntasks=1", "--time=1", "true")
        jobs = {name: str(cluster.record(name)["attempts"][0]["job_id"]) for name in ("lost", "preempted")}
        for name in ("preempted", "lost"):
            until(lambda name=name: state(cluster, jobs[name]) == "PENDING", f"{name} in the queue again", 200)
            cluster.administer("scontrol", "update", f"JobId={jobs[name]}", "StartTime=now")  # else in two minutes
        waited = cluster.run("ctrain", "wait", "lost", "preempted")
    finally:
        subprocess.run([ENTRY, "start-node", lost], check=True)
    assert waited.returncode == 0, waited.stdout + waited.stderr
    for name, why in (("lost", "a node failed"), ("preempted", "preempted")):
        record = cluster.record(name)
        assert [made["outcome"] for made in record["attempts"]] == ["requeued", "completed"]
        assert why in record["attempts"][0]["word"] and record["nodes"] == [other], record


@pytest.fixture
def third_node(cluster: Cluster) -> Iterator[None]:
    before = cluster.nodes
    try:
        subprocess.run([ENTRY, "up", "--nodes", "3"], check=True)
        yield
    finally:
        subprocess.run([ENTRY, "up", "--nodes", str(before)], check=True)


@pytest.mark.skipif(not LONG, reason="at night: Slurm takes half a minute to notice a dead node")
@pytest.mark.usefixtures("third_node")
def test_a_node_that_failed_a_run_is_left_out_although_it_is_up_again(cluster: Cluster) -> None:
    assert cluster.run(*SUBMIT, "--nodes", "2", "--name", "moves", *GOES_ON).returncode == 0
    first, bad = started_on(cluster, "moves"), started_on(cluster, "moves", 1)
    job = str(cluster.record("moves")["attempts"][0]["job_id"])
    subprocess.run([ENTRY, "kill-node", bad], check=True)
    until(lambda: state(cluster, job) == "PENDING", "the job in the queue again", 200)
    subprocess.run([ENTRY, "start-node", bad], check=True)
    assert f"ExcNodeList={bad} " in cluster.administer("scontrol", "--oneliner", "show", "job", job)
    cluster.administer("scontrol", "update", f"JobId={job}", "StartTime=now")  # else in two minutes
    waited = cluster.run("ctrain", "wait", "moves")
    assert waited.returncode == 0, waited.stdout + waited.stderr
    record = cluster.record("moves")
    assert bad not in record["nodes"] and first in record["nodes"], record
    assert f"job {job} was queued again, without {bad}: " in str(record["restarts"]), record

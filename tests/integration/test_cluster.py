"""The one-machine cluster shows what real ones do: other tests rely on it to make a defect of ctrain visible."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time

import pytest

from samples.cluster import Cluster

AFFINITY = "import os; print(os.environ['SLURM_PROCID'], sorted(os.sched_getaffinity(0)))"


def srun(cluster: Cluster, *argv: str) -> str:
    done = cluster.run("srun", *argv, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(cluster: Cluster, *options: str, command: str) -> str:
    """The id of the batch job that runs `command`."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", command]
    return cluster.run(*argv, timeout=60).stdout.strip()


def wait_for_state(cluster: Cluster, job: str, *states: str) -> str:
    """The state of the job once it is one of `states`, as Slurm's controller says it."""
    deadline = time.monotonic() + 60
    state = ""
    while state not in states:
        assert time.monotonic() < deadline, f"job {job} is {state}, not one of {states}"
        shown = re.search(r"JobState=(\S+)", cluster.run("scontrol", "show", "job", job).stdout)
        state = shown[1] if shown else ""
        time.sleep(0.2)
    return state


def test_partitions_differ_in_gpus_time_limit_and_cpus(cluster: Cluster) -> None:
    rows = cluster.run("sinfo", "--noheader", "--format=%P|%l|%D|%c|%m|%G").stdout.split()
    assert rows == [
        f"cas_v100_2*|2-00:00:00|{cluster.nodes}|2|8192|gpu:v100:2(S:0)",
        "skl|2-00:00:00|1|2|8192|(null)",
        "amd_a100nv_8|12:00:00|1|16|16384|gpu:a100:8(S:0-1)",
        f"debug|10:00|{cluster.nodes}|2|8192|gpu:v100:2(S:0)",
        f"spot|2-00:00:00|{cluster.nodes}|2|8192|gpu:v100:2(S:0)",
    ]


def test_a_task_sees_the_cpus_of_its_share_where_tasks_are_bound(cluster: Cluster) -> None:
    for options in (["--partition=debug"], ["--partition=skl"], ["--cpu-bind=cores"]):
        one_each = srun(cluster, *options, "--ntasks=2", "--nodes=1", "--cpus-per-task=1", "python3", "-c", AFFINITY)
        assert sorted(one_each.splitlines()) == ["0 [0]", "1 [1]"]
        assert srun(cluster, *options, "--ntasks=1", "--cpus-per-task=2", "python3", "-c", AFFINITY) == "0 [0, 1]\n"
    not_bound = srun(cluster, "--ntasks=2", "--nodes=1", "--cpus-per-task=1", "python3", "-c", AFFINITY)
    assert sorted(not_bound.splitlines()) == ["0 [0, 1]", "1 [0, 1]"]


def test_a_node_with_more_cpus_than_the_machine_runs_a_rank_per_gpu(cluster: Cluster) -> None:
    options = ["--partition=amd_a100nv_8", "--ntasks=8", "--cpus-per-task=2", "--gres=gpu:8"]
    devices = srun(cluster, *options, "bash", "-c", "echo $CUDA_VISIBLE_DEVICES").split()
    assert devices == ["0,1,2,3,4,5,6,7"] * 8


def test_memory_that_is_not_asked_for_is_all_of_the_node(cluster: Cluster) -> None:
    asked_for = 'scontrol show job "$SLURM_JOB_ID" | grep --only-matching "mem=[^,]*"'
    for partition, memory in (("cas_v100_2", "mem=8G\n"), ("debug", "mem=2G\n"), ("skl", "mem=2G\n")):
        assert srun(cluster, f"--partition={partition}", "--ntasks=1", "bash", "-c", asked_for) == memory


def test_jobs_of_spot_make_way(cluster: Cluster) -> None:
    job = submit(cluster, "--partition=spot", "--nodes=2", command="sleep 600")
    wait_for_state(cluster, job, "RUNNING")
    srun(cluster, f"--nodes={cluster.nodes}", "--exclusive", "true")
    assert wait_for_state(cluster, job, "PREEMPTED", "CANCELLED", "COMPLETED", "FAILED") == "PREEMPTED"


def test_what_a_test_leaves_ends_with_it(cluster: Cluster) -> None:
    """When it fails, too: conftest.py."""
    before = cluster.jobs()
    job = submit(cluster, "--nodes=2", command="sleep 600")
    wait_for_state(cluster, job, "RUNNING")
    client = cluster.start("srun", "--partition=skl", "--ntasks=1", "sleep", "600")
    marked = {**os.environ, "CTRAIN_RUN_DIR": f"{cluster.runs('left')}"}
    rank = subprocess.Popen(["sleep", "600"], env=marked)
    cluster.end_all(but=before)
    assert cluster.jobs() == before
    assert (client.poll(), rank.wait(timeout=60)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_a_job_that_takes_more_memory_than_its_own_is_killed(cluster: Cluster) -> None:
    if not cluster.confines:
        pytest.skip("no cgroup v1 on this machine: jobs can take more memory than they asked for")
    job = submit(cluster, "--mem=100M", command="exec python3 -c 'x = b\"x\" * 400_000_000'")
    assert wait_for_state(cluster, job, "OUT_OF_MEMORY", "FAILED", "COMPLETED") == "OUT_OF_MEMORY"


def test_accounting_tells_who_cancelled(cluster: Cluster) -> None:
    by_user, by_admin = (submit(cluster, "--partition=debug", "--mem=100", command="sleep 600") for _ in range(2))
    for job in (by_user, by_admin):
        wait_for_state(cluster, job, "RUNNING")
    cluster.run("scancel", by_user)
    environment = {"SLURM_CONF": str(cluster.state / "etc" / "slurm.conf"), "PATH": "/usr/bin:/bin"}
    subprocess.run(["scancel", by_admin], check=True, env=environment)
    for job in (by_user, by_admin):
        wait_for_state(cluster, job, "CANCELLED")
    researcher = cluster.run("id", "--user").stdout.strip()
    ends: dict[str, str] = {}
    deadline = time.monotonic() + 30
    while len(ends) < 2 and time.monotonic() < deadline:
        rows = cluster.run("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State").stdout
        ends = dict(row.split("|") for row in rows.splitlines() if row.startswith((f"{by_user}|C", f"{by_admin}|C")))
        time.sleep(0.5)
    assert ends == {by_user: f"CANCELLED by {researcher}", by_admin: "CANCELLED by 0"}


def test_the_login_nodes_tmp_is_not_that_of_the_nodes(cluster: Cluster) -> None:
    done = cluster.run("bash", "-c", 'cd "$(mktemp -d)" && srun --ntasks=1 pwd; rmdir "$PWD"')
    assert "couldn't chdir to" in done.stderr

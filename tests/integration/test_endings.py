"""How runs end on real Slurm, whoever watches: by themselves, by a scheduler, by an administrator, by a full disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from samples.cluster import Cluster, started, until
from samples.long_mode import LONG

SLEEP = ("--image", "pytorch-cpu", "--launcher", "env", "--preflight", "off")
TIMES = {"created", "start", "end", "submitted", "job_id", "name"}


def without_times(data: object) -> object:
    """A record without what differs between two runs of the same."""
    if isinstance(data, dict):
        return {key: without_times(value) for key, value in data.items() if key not in {*TIMES, "run", "run_directory"}}
    return [without_times(item) for item in data] if isinstance(data, list) else data


# Saves when it is told to end, and exits 0; says how often it was told.
SAVES = """\
import os, signal, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(time.monotonic()))
print("ready", flush=True)
while not told or time.monotonic() < told[0] + 2:
    time.sleep(0.05)
print("saved after", len(told), flush=True)
"""


def no_jobs(cluster: Cluster) -> bool:
    return not cluster.run("squeue", "--noheader", "--format=%A %T").stdout.strip()


def job_of(cluster: Cluster, name: str) -> str:
    return str(cluster.record(name)["attempts"][-1]["job_id"])


def start_two_nodes(cluster: Cluster, name: str, *options: str) -> subprocess.Popen[str]:
    """A run that sleeps on two nodes, once all four ranks are up."""
    process = cluster.start("ctrain", "run", "--nodes", "2", *SLEEP, "--name", name, *options, "--", "sleep", "600")
    until(lambda: started(cluster.runs(name)) == 4, "the start of four ranks", 120)
    return process


def test_a_killed_client_is_replaced_by_another(cluster: Cluster) -> None:
    argv = ["ctrain", "run", "--nodes", "2", *SLEEP]
    program = ["--", "/bin/sh", "-c", "sleep 5; echo done"]
    assert cluster.run(*argv, "--name", "undisturbed", *program).returncode == 0
    process = cluster.start(*argv, "--name", "orphaned", *program)
    until(lambda: started(cluster.runs("orphaned")) == 4, "the start of four ranks")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert cluster.record("orphaned")["exit"] is None
    done = cluster.run("ctrain", "attach", "orphaned")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done" in done.stdout.splitlines()
    assert without_times(cluster.record("orphaned")) == without_times(cluster.record("undisturbed"))


def test_submit_runs_attach_cancel(cluster: Cluster) -> None:
    done = cluster.run("ctrain", "submit", *SLEEP, "--name", "later", "--", "sleep", "600")
    assert done.returncode == 0, done.stderr
    assert "ctrain attach later" in done.stdout
    until(lambda: started(cluster.runs("later")) == 2, "the start of two ranks")
    listed = cluster.run("ctrain", "runs").stdout
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [["later", "running"]]
    done = cluster.run("ctrain", "cancel", "last")
    assert done.returncode == 0 and "cancelled job" in done.stdout, done.stdout + done.stderr
    assert cluster.record("later")["exit"] == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}
    done = cluster.run("ctrain", "attach", "later")
    assert done.returncode == 130 and "cancelled job" in done.stdout
    until(lambda: no_jobs(cluster), "the end of the job")


def test_a_closed_terminal_leaves_the_run_alone(cluster: Cluster) -> None:
    process = start_two_nodes(cluster, "hup")
    os.killpg(process.pid, signal.SIGHUP)
    process.communicate(timeout=60)
    assert cluster.record("hup")["exit"] is None
    assert "RUNNING" in cluster.run("squeue", "--noheader", "--format=%T").stdout
    assert cluster.run("ctrain", "cancel", "hup").returncode == 0
    until(lambda: no_jobs(cluster), "the end of the job")


def test_a_reader_that_goes_does_not_keep_ctrl_c_from_the_job(cluster: Cluster) -> None:
    cluster.write(
        "piped.sh", "ctrain run --nodes 2 --image pytorch-cpu --launcher env --name piped -- sleep 600 | head -n 1\n"
    )
    process = cluster.start("bash", "piped.sh")
    until(lambda: started(cluster.runs("piped")) == 4, "the start of four ranks", 120)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=90)
    until(lambda: no_jobs(cluster), "the end of the job")
    until(lambda: cluster.record("piped")["exit"] is not None, "the record")
    assert cluster.record("piped")["exit"] == {"code": 130, "reason": "cancelled", "by": "user", "ending": "cancelled"}


def start_saving(cluster: Cluster, name: str, *options: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run of four ranks on two nodes that save when they are told to end, once all are ready for it."""
    cluster.write("saves.py", SAVES)
    words = ["ctrain", "run", "--nodes", "2", *SLEEP, "--name", name, *options, "--", "python", "saves.py"]
    process = cluster.start(*before, *words)
    logs = cluster.runs(name) / "logs"
    until(lambda: sum("ready" in path.read_text() for path in logs.glob("rank*.log")) == 4, "four ready ranks", 120)
    return process


def end_of(cluster: Cluster, name: str, process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ending and outcome of a run of start_saving. It is not completed; every rank was told once, none is blamed."""
    output, _ = process.communicate(timeout=120)
    logs = [(cluster.runs(name) / f"logs/rank{rank}.log").read_text() for rank in range(4)]
    assert logs == ["ready\nsaved after 1\n"] * 4
    record = cluster.record(name)
    assert process.returncode == record["exit"]["code"] != 0
    assert "failed first" not in output
    return record["exit"]["ending"], record["attempts"][-1]["outcome"]


def as_root(cluster: Cluster, *argv: str) -> None:
    subprocess.run(argv, check=True, env={**os.environ, "SLURM_CONF": str(cluster.state / "etc/slurm.conf")})


def test_a_program_that_saves_and_exits_0_when_ctrain_cancels_it_is_cancelled(cluster: Cluster) -> None:
    process = start_saving(cluster, "ctrl-c", "--launcher", "torchrun")
    os.killpg(process.pid, signal.SIGINT)
    assert end_of(cluster, "ctrl-c", process) == ("cancelled", "cancelled by its user")
    salloc = ("salloc", "--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--time=5")
    process = start_saving(cluster, "inside", before=salloc)
    assert cluster.run("ctrain", "cancel", "inside").returncode == 0
    assert end_of(cluster, "inside", process)[0] == "cancelled"
    assert process.returncode == 130


def test_who_cancelled_is_named_and_no_rank_is_blamed(cluster: Cluster) -> None:
    process = start_saving(cluster, "by-user")
    cluster.run("scancel", job_of(cluster, "by-user"))
    assert end_of(cluster, "by-user", process) == ("cancelled", "cancelled by its user")
    process = start_saving(cluster, "by-admin", "--launcher", "torchrun")
    as_root(cluster, "scancel", job_of(cluster, "by-admin"))
    assert end_of(cluster, "by-admin", process) == ("cancelled", "cancelled by an administrator")
    assert cluster.record("by-admin")["exit"]["by"] == "scheduler"
    listed = [line.split(None, 1)[1] for line in cluster.run("ctrain", "runs").stdout.splitlines()[1:]]
    assert [line.partition(" job ")[0].strip() for line in listed] == [
        "cancelled by an administrator",
        "cancelled by its user",
    ]


def test_the_time_limit_is_the_ending_of_a_program_that_saves(cluster: Cluster) -> None:
    """Slurm sends SIGTERM twice."""
    process = start_saving(cluster, "limit", "--launcher", "mpi")
    as_root(cluster, "scontrol", "update", f"JobId={job_of(cluster, 'limit')}", "EndTime=now+1")
    assert end_of(cluster, "limit", process) == ("time limit", "time limit reached")


def test_a_preempted_job_is_named(cluster: Cluster) -> None:
    process = start_saving(cluster, "spot", "--partition", "spot")
    assert cluster.run("srun", f"--nodes={cluster.nodes}", "--exclusive", "true", timeout=120).returncode == 0
    assert end_of(cluster, "spot", process) == ("preempted", "preempted")


def test_a_rank_that_runs_out_of_memory_is_named_with_the_limit(cluster: Cluster) -> None:
    if not cluster.confines:
        pytest.skip("jobs are not held to their memory here: no cgroup v1")
    cluster.write(
        "greedy.py",
        """\
        import os, time
        time.sleep(1)
        greedy = b"1" * (2 << 30) if os.environ["RANK"] == "3" else time.sleep(60)
        """,
    )
    argv = ["ctrain", "run", "--nodes", "2", *SLEEP, "--mem", "1G", "--name", "greedy", "--", "python", "greedy.py"]
    done = cluster.run(*argv)
    reason = "rank 3 on node02 ran out of memory: limit 1.1 GB per node. Request more with --mem, or use fewer ranks"
    assert done.returncode == 137 and reason in done.stdout, done.stdout
    assert cluster.record("greedy")["exit"]["ending"] == "out of memory"


def test_warning_signals_reach_the_program_and_kill_nothing(cluster: Cluster) -> None:
    cluster.write(
        "warned.py",
        """\
        import signal, time
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        print("ready", flush=True)
        while not seen:
            time.sleep(0.1)
        print("warned", flush=True)
        """,
    )
    argv = ["ctrain", "run", "--nodes", "2", *SLEEP, "--name", "warned", "--", "python", "warned.py"]
    process = cluster.start(*argv)
    log = cluster.runs("warned") / "logs"
    until(lambda: sum("ready" in path.read_text() for path in log.glob("rank*.log")) == 4, "four ready ranks", 120)
    cluster.run("scancel", "--signal=USR1", job_of(cluster, "warned"))
    output, _ = process.communicate(timeout=90)
    assert (process.returncode, cluster.record("warned")["exit"]["ending"]) == (143, "saved and left"), output
    assert all("warned" in (log / f"rank{rank}.log").read_text() for rank in range(4))


def test_a_rank_whose_wrapper_was_killed_is_named(cluster: Cluster) -> None:
    process = start_two_nodes(cluster, "wrapper")
    until(lambda: len(pids_of("--exact", "--full", "sleep 600")) == 4, "four programs", 60)
    # task.sh of rank 3 and all below it: nobody is left to write how it ended.
    victims = [pid for pid in pids_of("--full", "wrapper/task.sh") if environment_of(pid).get("SLURM_PROCID") == "3"]
    for pid in [*victims, *pids_of("--parent", ",".join(victims))]:  # the script first: it would record the others' end
        with contextlib.suppress(ProcessLookupError):  # what a script looks up by is gone in a moment
            os.kill(int(pid), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert "rank 3 on node02 failed first" in output and "(from the job's log)" in output, output
    assert process.returncode != 0


def pids_of(*options: str) -> list[str]:
    done = subprocess.run(["pgrep", *options], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: none
    return done.stdout.split()


def environment_of(pid: str) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def test_a_run_directory_that_the_nodes_do_not_have_is_named(cluster: Cluster) -> None:
    runs = Path(tempfile.gettempdir()) / "ctrain-test-runs"  # each node has a /tmp of its own
    subprocess.run(["install", "-d", "-o", "researcher", str(runs)], check=True)
    try:
        done = cluster.run("ctrain", "run", *SLEEP, "--runs", str(runs), "--name", "tmp", "--", "true")
        salloc = ["salloc", "--nodes=1", "--ntasks=2", "--time=5"]
        inside = cluster.run(*salloc, "ctrain", "run", *SLEEP, "--runs", str(runs), "--name", "tmp2", "--", "true")
    finally:
        subprocess.run(["rm", "-rf", str(runs)], check=True)
    for run in (done, inside):
        assert run.returncode != 0
        assert f"{runs}/" in run.stdout and "--runs DIR" in run.stdout, run.stdout


def test_what_sbatch_rejects_leaves_nothing(cluster: Cluster) -> None:
    done = cluster.run("ctrain", "run", *SLEEP, "--reservation", "nope", "--name", "rejected", "--", "true")
    assert done.returncode == 72
    assert done.stderr.startswith("ctrain: sbatch rejected the job: ") and "eservation" in done.stderr
    assert not cluster.runs("rejected").exists()


def test_options_of_the_scheduler_reach_it(cluster: Cluster) -> None:
    argv = ["ctrain", "run", *SLEEP, "--exclude", "node01", "--mem", "1500M", "--comment", "a=b;c", "--name", "options"]
    done = cluster.run(*argv, "--scheduler-option=--nice=10", "--", "true")
    assert done.returncode == 0, done.stdout + done.stderr
    job = cluster.run("scontrol", "show", "job", job_of(cluster, "options")).stdout
    assert "ExcNodeList=node01" in job and "Comment=a=b;c" in job and "MinMemoryNode=1500M" in job and "Nice=10" in job
    assert cluster.record("options")["nodes"] == ["node02"]


def test_variables_of_an_outer_shell_do_not_leak_into_the_job(cluster: Cluster) -> None:
    outer = {
        "SLURM_NTASKS_PER_NODE": "7",
        "SBATCH_TIMELIMIT": "1",
        "TMPDIR": "/nonexistent",
        "BASH_ENV": "/nonexistent/x",
    }
    program = ["--", "/bin/sh", "-c", "env | sort"]
    done = cluster.run("ctrain", "run", *SLEEP, "--name", "leak", *program, **outer, APPTAINERENV_LEAKED="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "LEAKED" not in done.stdout and "/nonexistent" not in done.stdout
    assert "\nBASH_ENV=\n" in done.stdout
    assert "SLURM_NTASKS_PER_NODE=2" in done.stdout
    assert "UNLIMITED" not in cluster.run("scontrol", "show", "job", job_of(cluster, "leak")).stdout


def test_without_slurm_on_the_path_a_cluster_job_is_refused(cluster: Cluster) -> None:
    venv = cluster.state / "apps/venv/bin"
    nothing = cluster.write("bin/readme", "")
    path = f"{venv}:{nothing.parent}"
    for name in ("apptainer", "bash", "env", "uname", "mkdir", "rm", "date", "grep", "cut", "flock"):
        (nothing.parent / name).unlink(missing_ok=True)
        (nothing.parent / name).symlink_to(
            subprocess.run(["which", name], capture_output=True, text=True).stdout.strip()
        )
    done = cluster.run(str(venv / "ctrain"), "run", "--nodes", "2", "--image", "pytorch-cpu", "--", "true", PATH=path)
    assert (done.returncode, done.stdout) == (72, "")
    assert "no scheduler found on this machine" in done.stderr and "--site local" in done.stderr


@pytest.mark.parametrize("after", [0.3, 1.0, 2.0, 4.0] if LONG else [1.0, 4.0])
def test_a_client_killed_early_leaves_no_orphan(cluster: Cluster, after: float) -> None:
    """During the submission, while the job waits, while it starts: attach always knows what became of it."""
    name = f"early-{after}"
    process = cluster.start("ctrain", "run", "--nodes", "2", *SLEEP, "--name", name, "--", "sleep", "3")
    time.sleep(after)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    if not (cluster.runs(name) / "plan.json").exists():
        assert no_jobs(cluster)
        return
    done = cluster.run("ctrain", "attach", name, timeout=120)
    recorded = cluster.record(name)["exit"]
    assert recorded["reason"] in ("completed", "the job was never submitted"), done.stdout + done.stderr
    until(lambda: no_jobs(cluster), "the end of the job")


def test_programs_below_a_shell_save_when_their_run_is_cancelled(cluster: Cluster) -> None:
    """The shell would die at once, and with it its torchrun; torchrun tells its workers itself, once."""
    cluster.write("saves.py", SAVES)
    cluster.write("run.sh", "torchrun --nproc-per-node 2 saves.py\necho after\n")
    words = ["ctrain", "run", "--nodes", "2", *SLEEP, "--launcher", "node", "--name", "shells", "--", "bash", "run.sh"]
    process = cluster.start(*words)
    logs = [cluster.runs("shells") / f"logs/rank{node}.log" for node in range(2)]
    until(lambda: [path.exists() and path.read_text().count("ready") for path in logs] == [2, 2], "all ranks", 120)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    for log in logs:
        lines = log.read_text().splitlines()
        assert (lines.count("saved after 1"), lines.count("after")) == (2, 0), lines

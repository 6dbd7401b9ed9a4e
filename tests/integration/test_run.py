"""`ctrain run` on two real Slurm nodes, in the real image, with real MPI and Horovod."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ctrain_runtime.store import lease
from samples.cluster import Cluster, started, until

WORLD = """\
    import os, socket, sys
    import horovod.torch as hvd, torch

    hvd.init()
    ranks = hvd.allgather(torch.tensor([hvd.rank()])).tolist()
    total = hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum).item()
    print("WORLD", hvd.rank(), hvd.size(), ranks, total, socket.gethostname(), os.environ["RANK"], flush=True)
    if os.environ.get("STAY"):
        from until_joined import until_joined

        until_joined(hvd.size())
    if os.environ.get("KILL") == str(hvd.rank()):
        os.kill(os.getpid(), 9)
    hvd.allreduce(torch.ones(1), name="end")
"""

UNTIL_JOINED = Path(__file__).parents[1] / "samples" / "until_joined.py"
GPU_ORDER = ["0", "1", "7", "6", "5", "4", "3", "2"]


@pytest.fixture
def world(cluster: Cluster) -> Cluster:
    cluster.write("world.py", WORLD)
    return cluster


def logs(run: Path, ranks: int = 4) -> list[str]:
    return [(run / "logs" / f"rank{rank}.log").read_text() for rank in range(ranks)]


@pytest.mark.quick
def test_a_world_of_four_is_one_world(world: Cluster) -> None:
    world.write("until_joined.py", UNTIL_JOINED.read_text())
    argv = ["--nodes", "2", "--image", "pytorch-cpu", "--name", "one", "--env", "STAY=1", "--", "python", "world.py"]
    done = world.run("ctrain", "run", *argv)
    assert done.returncode == 0, done.stdout + done.stderr
    run = world.home / "ctrain-runs" / "one"
    for rank, log in enumerate(logs(run)):
        node = f"node0{rank // 2 + 1}"
        assert log == f"WORLD {rank} 4 [0, 1, 2, 3] 6.0 {node} {rank}\n"
    assert "--mpi=pmix" in (run / "job.sh").read_text()
    record = world.record("one")
    assert record["nodes"] == ["node01", "node02"]
    assert (record["world_size"], record["exit"]) == (
        4,
        {"code": 0, "reason": "completed", "by": "program", "ending": "completed"},
    )
    (attempt,) = record["attempts"]
    assert (attempt["outcome"], f"job {attempt['job_id']}") == ("completed", attempt["name"])
    assert record["world"] == {"state": "joined", "joined": 4, "of": 4}
    assert done.stdout.splitlines()[-2:] == ["world: joined 4/4", f"run directory: {run}"]
    assert done.stdout.count("WORLD") == 1, "only rank 0 is shown"


def test_a_killed_rank_ends_the_job_and_is_named(world: Cluster) -> None:
    size = ["--nodes", "2", "--ranks-per-node", "1", "--image", "pytorch-cpu", "--name", "killed"]
    done = world.run("ctrain", "run", *size, "--env", "KILL=1", "--", "python", "world.py")
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 on node02 failed first: signal 9 (killed)" in done.stdout
    assert world.record("killed")["exit"] == {
        "code": 137,
        "reason": "rank 1 on node02 failed first: signal 9 (killed)",
        "by": "program",
        "ending": "failed",
    }


def test_the_plan_of_a_dry_run_is_what_runs(cluster: Cluster) -> None:
    argv = [
        "--nodes",
        "2",
        "--image",
        "pytorch-cpu",
        "--launcher",
        "mpi",
        "--name",
        "planned",
        "--env",
        "A=1 '$HOME",
        "--",
        "true",
    ]
    dry = cluster.run("ctrain", "run", "--dry-run", "--json", *argv)
    run = cluster.runs("planned")
    assert dry.returncode == 0 and not run.exists(), dry.stderr
    done = cluster.run("ctrain", "run", "--json", *argv)
    assert done.returncode == 0, done.stderr
    plan = json.loads(dry.stdout)
    assert plan == json.loads((run / "plan.json").read_text())
    for name, text in plan["scripts"].items():
        assert (run / name).read_text() == text
    # Slurm's own memory of the job is the last word on what ran.
    number = json.loads(done.stdout)["attempts"][0]["job_id"]
    assert (
        cluster.run("scontrol", "write", "batch_script", number, "-").stdout.strip()
        == plan["scripts"]["job.sh"].strip()
    )
    job = cluster.run("scontrol", "show", "job", number).stdout
    assert "NumNodes=2 " in job and "NumTasks=4 " in job and "TimeLimit=01:00:00" in job and "gpu:2" in job


def test_ctrl_c_cancels_the_job(cluster: Cluster) -> None:
    argv = ["ctrain", "run", "--nodes", "2", "--image", "pytorch-cpu", "--name", "cancelled", "--", "sleep", "600"]
    # A test run in the background of a script has SIGINT switched off, and so would what it starts.
    command = ["env", "--default-signal=INT", *cluster.command(*argv)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    run = cluster.home / "ctrain-runs" / "cancelled"

    def leases() -> list[lease.Lease]:  # HOST:DIRECTORY, for `ctrain store show`
        return [taken for taken in lease.unexpired(cluster.store, time.time()) if taken.run.endswith(f":{run}")]

    until(lambda: started(run) == 4, "the start of four ranks")
    (taken,) = leases()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "cancelled job" in output
    assert taken.owner == "researcher" and 3000 < taken.until - time.time() < 3600  # the job's time limit: an hour
    assert leases() == []
    assert cluster.record("cancelled")["exit"] == {
        "code": 130,
        "reason": "cancelled",
        "by": "user",
        "ending": "cancelled",
    }
    until(lambda: not cluster.run("squeue", "--noheader").stdout.strip(), "the end of the job")


def test_inside_an_allocation_it_uses_that_one(world: Cluster) -> None:
    argv = ["ctrain", "run", "--image", "pytorch-cpu", "--name", "inside", "--", "python", "world.py"]
    salloc = ["salloc", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:1", "--time=10"]
    done = world.run(*salloc, *argv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in allocation" in done.stdout
    assert all("[0, 1] 1.0" in log for log in logs(world.runs("inside"), 2))
    assert world.record("inside")["nodes"] == ["node01", "node02"]


def test_a_folder_with_a_job_file_and_launcher_env(cluster: Cluster) -> None:
    cluster.write(
        "my job/job.yaml",
        """\
        image: pytorch-cpu
        launcher: env
        command: [python, ddp.py, "two words"]
        resources: {nodes: 2, time: "5:00"}
        env: {GREETING: "it's $HOME"}
        """,
    )
    cluster.write(
        "my job/ddp.py",
        """\
        import os, sys
        import torch, torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(total)
        dist.barrier()
        print(dist.get_world_size(), total.item(), sys.argv[1:], os.environ["GREETING"], os.environ["LOCAL_RANK"])
        sys.stdout.flush()
        os._exit(0)
        """,
    )
    done = cluster.run("ctrain", "run", "./my job", "--preflight", "off", "--name", "folder", "--", "--more")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, log in enumerate(logs(cluster.home / "ctrain-runs" / "folder")):
        assert log.splitlines()[-1] == f"4 6.0 ['two words', '--more'] it's $HOME {rank % 2}"


def test_site_local_runs_two_groups_of_ranks(world: Cluster) -> None:
    argv = ["--site", "local", "--nodes", "2", "--ranks-per-node", "2", "--image", "pytorch-cpu", "--name", "local"]
    done = world.run("ctrain", "run", *argv, "--", "python", "world.py")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, log in enumerate(logs(world.home / "ctrain-runs" / "local")):
        assert log.startswith(f"WORLD {rank} 4 [0, 1, 2, 3] 6.0 ")


def test_the_boundary_is_clean(cluster: Cluster) -> None:
    cluster.write(
        ".local/lib/python3.11/site-packages/torch.py", "raise SystemExit('the torch of ~/.local was imported')"
    )
    cluster.write("secret.py", "value = 1")
    own = "os.environ.pop('PYTHONPATH')"
    program = f"import os, torch; print({own}, sorted(os.environ), sorted(os.listdir(os.environ['HOME'])))"
    run = ["ctrain", "run", "--image", "pytorch-cpu", "--ranks-per-node", "1", "--launcher", "env", "--name", "clean"]
    run += ["--", "python", "-c"]
    try:
        done = cluster.run(*run, program, PYTHONPATH="/nonexistent", LD_PRELOAD="libm.so.6", CONDA_PREFIX="/opt/conda")
    finally:
        subprocess.run(["rm", "-rf", str(cluster.home / ".local")], check=True)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = (cluster.home / "ctrain-runs" / "clean" / "logs" / "rank0.log").read_text()
    assert not any(name in seen for name in ("/nonexistent", "LD_PRELOAD", "CONDA_PREFIX", "CTRAIN_STORE"))
    assert seen.startswith("/home/ctrain/.startup [")  # by which hanging Pythons are asked for their stacks
    assert "'RANK'" in seen and "'SLURM_JOB_ID'" in seen and seen.rstrip().endswith("['.heartbeat', '.startup']")


def test_gpus_come_in_the_order_of_the_site(cluster: Cluster) -> None:
    """In a cgroup a step counts its GPUs from 0; Slurm tells which ones they are."""
    keys = f"partition: amd_a100nv_8\ncpu_bind: none\ngpu_order: [{', '.join(GPU_ORDER)}]\n"
    site = str(cluster.write("ordered.yaml", f"name: ordered\nextends: generic-slurm\n{keys}"))
    others = ("--partition=amd_a100nv_8", "--gres=gpu:2", "--mem=1G", "--output=/dev/null", "--wrap=sleep 600")
    job = cluster.run("sbatch", "--parsable", *others).stdout.strip()
    size = ("--gpus-per-node", "2", "--ranks-per-node", "1", "--mem", "1G", "--launcher", "env", "--preflight", "off")
    program = ("sh", "-c", "echo GPUs $SLURM_STEP_GPUS as $CUDA_VISIBLE_DEVICES")
    try:
        until(
            lambda: cluster.run("squeue", "--noheader", "--format=%T", f"--jobs={job}").stdout == "RUNNING\n", "the job"
        )
        argv = ("ctrain", "run", "--site", site, "--image", "pytorch-cpu", "--name", "ordered", *size, "--", *program)
        done = cluster.run(*argv)
    finally:
        cluster.run("scancel", job)
    shown = re.search(r"(?m)^GPUs (\d),(\d) as (\d),(\d)$", done.stdout)
    assert shown, done.stdout + done.stderr
    numbers, devices = shown.groups()[:2], shown.groups()[2:]
    given = ("0", "1") if cluster.confines else numbers
    assert devices == tuple(given[numbers.index(number)] for number in sorted(numbers, key=GPU_ORDER.index))


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["resnet50", "--nodes", "0"], 64, "--nodes must be at least 1, not 0"),
        (
            ["resnet50", "--nodes", "99"],
            74,
            "partition cas_v100_2 has {nodes} usable nodes, 99 requested. Largest that fits: --nodes {nodes}",
        ),
        (
            ["resnet50", "--partition", "nope"],
            74,
            "partition 'nope' not found among those that are up. Available: cas_v100_2, skl, amd_a100nv_8, debug, spot",
        ),
        (["resnet50", "--gpus-per-node", "3"], 74, "Largest that fits: --gpus-per-node 2"),
        (["resnet50", "--time", "9-00:00:00"], 74, "Longest that fits: --time 2-00:00:00"),
        (["resnet50"], 71, "site generic-slurm has no data set 'imagenet', required by job resnet50"),
        (["resnet50", "--data", "/no/such"], 71, "cannot mount /no/such at /data: not found"),
        (["resnet5"], 65, "unknown job 'resnet5'. Did you mean 'resnet50'?"),
        (["--image", "pytorch-gpu", "--", "true"], 68, "Available: pytorch-cpu"),
        (["--image", "/etc/passwd", "--", "true"], 69, "/etc/passwd is not a SIF image"),
        (["--site", "nope", "resnet50"], 67, "unknown site 'nope'"),
    ],
)
def test_what_can_not_run_is_refused_in_one_line(cluster: Cluster, argv: list[str], code: int, message: str) -> None:
    data = [] if "--data" in argv or code == 71 or argv[0].startswith("--") else ["--data", str(cluster.digits)]
    options = [*argv[:1], *data, *argv[1:]]
    done = cluster.run("ctrain", "run", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert message.format(nodes=cluster.nodes) in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not (cluster.home / "ctrain-runs").exists()


def test_a_full_disk_leaves_one_line(cluster: Cluster) -> None:
    small = cluster.home / "small"
    small.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "tmpfs", str(small)], check=True)
    try:
        (small / "filler").write_bytes(b"x" * 60_000)
        done = cluster.run("ctrain", "run", "--image", "pytorch-cpu", "--runs", str(small), "--", "true")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert done.returncode == 75
    assert "No space left" in done.stderr and "Traceback" not in done.stderr

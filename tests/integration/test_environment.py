"""The environment of a run in a real container: of an image that does to bash what NGC's images do, and of GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from samples import tiny
from samples.cluster import Cluster, until
from samples.runs import CTRAIN

GPU_ORDER = ["0", "1", "7", "6", "5", "4", "3", "2"]


def output(folder: Path, name: str, *options: str) -> str:
    """The output of a run of bash with this name."""
    where = ["--site", "local", "--image", "image.sif", "--runs", "runs", "--launcher", "env", "--name", name]
    program = ["bash", "-c", "echo this is $0", "bash"]
    argv = [sys.executable, "-c", CTRAIN, "run", *where, *options, "--", *program]
    path = ":".join(word for word in sys.path if word)
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / f"runs/{name}/logs/rank0.log").read_text()


def test_what_the_image_would_do_at_each_start_of_bash_is_done_only_if_it_is_asked_for(tmp_path: Path) -> None:
    root = tiny.rootfs(tmp_path / "rootfs")
    (root / "probe.sh").write_text("echo probed\n")
    (root / ".singularity.d/env").mkdir(parents=True)
    (root / ".singularity.d/env/10-docker2singularity.sh").write_text("export BASH_ENV=/probe.sh ENV=/probe.sh\n")
    fakeroot = ["--fakeroot"] if os.geteuid() == 0 else []
    subprocess.run(["apptainer", "--quiet", "build", *fakeroot, "image.sif", "rootfs"], cwd=tmp_path, check=True)
    plain = ["apptainer", "--quiet", "exec", "--userns", "image.sif", "bash", "-c", "true"]
    assert subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "probed\n"
    assert output(tmp_path, "one") == "this is bash\n"
    assert output(tmp_path, "two", "--env", "BASH_ENV=/probe.sh") == "probed\nthis is bash\n"


def test_gpus_come_in_the_order_of_the_site(cluster: Cluster) -> None:
    """In a cgroup a step counts its GPUs from 0; which ones they are tells Slurm."""
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

"""The partition that a run gets when it names none, on a cluster with five of them."""

from __future__ import annotations

import os
import subprocess

from samples.cluster import Cluster, until

SITE = "name: free\nscheduler: slurm\n"
DEFAULT = "partition cas_v100_2 chosen: 2 of 2 nodes idle, the cluster's default"


def reason(cluster: Cluster, *options: str) -> str:
    site = str(cluster.write("free.yaml", SITE))
    argv = ("ctrain", "run", "--dry-run", "--site", site, "--image", "pytorch-cpu", *options, "--", "python", "-c", "0")
    done = cluster.run(*argv)
    assert done.returncode == 0, done.stderr
    notes = [line[len("note      ") :] for line in done.stdout.splitlines() if line.startswith("note      ")]
    return "; ".join(note for note in notes if note.startswith(("partition ", "other partitions ")))


def administer(cluster: Cluster, *argv: str) -> None:
    """Run a command of Slurm as root."""
    environment = {**os.environ, "SLURM_CONF": str(cluster.state / "etc/slurm.conf")}
    subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL)


def states(cluster: Cluster) -> str:
    return cluster.run("squeue", "--noheader", "--format=%T").stdout.strip()


def test_what_is_idle_does_not_change_ranks_and_gpus(cluster: Cluster) -> None:
    """debug allows too little time, and the jobs of spot are preempted; they share their nodes with the default."""
    assert reason(cluster) == DEFAULT
    instead = "1 of 1 nodes idle, instead of the default cas_v100_2 (2 GPUs per node)"
    assert reason(cluster, "--gpus-per-node", "4") == f"partition amd_a100nv_8 chosen: {instead}"
    options = ("--partition=cas_v100_2", "--nodes=2", "--output=/dev/null", "--wrap=sleep 600")
    job = cluster.run("sbatch", "--parsable", *options).stdout.strip()
    try:
        until(lambda: states(cluster) == "RUNNING", "the start of the job")
        waits = "partition cas_v100_2 chosen: 0 of 2 nodes idle, the cluster's default"
        differ = "other partitions are idle, where the run would differ"
        others = "skl: 1 rank and 0 GPUs per node; amd_a100nv_8: 8 ranks and 8 GPUs (a100) per node"
        assert reason(cluster) == f"{waits}; {differ}: {others}"
        assert reason(cluster, "--nodes", "2") == waits
        two = ("--gpus-per-node", "0", "--ranks-per-node", "2")
        assert "of the same shape" in reason(cluster, *two)
    finally:
        cluster.run("scancel", job)
        until(lambda: not states(cluster), "the end of the job")


def test_drained_nodes_do_not_count(cluster: Cluster) -> None:
    administer(cluster, "scontrol", "update", "nodename=node01", "state=drain", "reason=test")
    try:
        assert reason(cluster) == "partition cas_v100_2 chosen: 1 of 1 nodes idle, the cluster's default"
    finally:
        administer(cluster, "scontrol", "update", "nodename=node01", "state=resume")


def test_groups_and_accounts_of_the_user_count(cluster: Cluster) -> None:
    default = ("scontrol", "update", "partitionname=cas_v100_2")
    instead = "partition skl chosen: 1 of 1 nodes idle"
    administer(cluster, "sacctmgr", "-i", "add", "account", "ai", "cluster=ctrain")
    administer(cluster, "sacctmgr", "-i", "add", "user", "researcher", "account=ai", "cluster=ctrain")
    try:
        administer(cluster, *default, "AllowGroups=daemon")
        assert reason(cluster) == f"{instead}, the first that fits"  # Slurm does not show it
        administer(cluster, *default, "AllowGroups=ALL", "AllowAccounts=bio")
        assert reason(cluster) == f"{instead}, instead of the default cas_v100_2 (closed to account ai)"
        assert reason(cluster, "--account", "bio") == DEFAULT
    finally:
        administer(cluster, *default, "AllowGroups=ALL", "AllowAccounts=ALL")
        administer(cluster, "sacctmgr", "-i", "delete", "user", "researcher")
        administer(cluster, "sacctmgr", "-i", "delete", "account", "ai")

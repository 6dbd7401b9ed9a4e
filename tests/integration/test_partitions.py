"""The partition that a run gets when it names none, on a cluster with five of them."""

from __future__ import annotations

import pytest

from samples.cluster import Cluster, until

SITE = "name: free\nscheduler: slurm\n"


@pytest.fixture(autouse=True)
def all_idle(cluster: Cluster) -> None:
    """Nodes that a job waited for keep the mark "planned" until Slurm's backfill looks again."""
    until(lambda: set(cluster.administer("sinfo", "--noheader", "--format=%T").split()) == {"idle"}, "idle nodes", 120)


def reason(cluster: Cluster, *options: str) -> str:
    site = str(cluster.write("free.yaml", SITE))
    argv = ("ctrain", "run", "--dry-run", "--site", site, "--image", "pytorch-cpu", *options, "--", "python", "-c", "0")
    done = cluster.run(*argv)
    assert done.returncode == 0, done.stderr
    notes = [line[len("note      ") :] for line in done.stdout.splitlines() if line.startswith("note      ")]
    return "; ".join(note for note in notes if note.startswith(("partition ", "other partitions ")))


def default(nodes: int) -> str:
    """The reason for the default partition with so many idle nodes."""
    return f"partition cas_v100_2 chosen: {nodes} of {nodes} nodes idle, the cluster's default"


def states(cluster: Cluster) -> str:
    return cluster.run("squeue", "--noheader", "--format=%T").stdout.strip()


def test_what_is_idle_does_not_change_ranks_and_gpus(cluster: Cluster) -> None:
    """debug allows too little time, and the jobs of spot are preempted; they share their nodes with the default."""
    nodes = cluster.nodes
    assert reason(cluster) == default(nodes)
    instead = "1 of 1 nodes idle, instead of the default cas_v100_2 (2 GPUs per node)"
    assert reason(cluster, "--gpus-per-node", "4") == f"partition amd_a100nv_8 chosen: {instead}"
    options = ("--partition=cas_v100_2", f"--nodes={nodes}", "--output=/dev/null", "--wrap=sleep 600")
    job = cluster.run("sbatch", "--parsable", *options).stdout.strip()
    try:
        until(lambda: states(cluster) == "RUNNING", "the start of the job")
        waits = f"partition cas_v100_2 chosen: 0 of {nodes} nodes idle, the cluster's default"
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
    cluster.administer("scontrol", "update", "nodename=node01", "state=drain", "reason=test")
    try:
        assert reason(cluster) == default(cluster.nodes - 1)
    finally:
        cluster.administer("scontrol", "update", "nodename=node01", "state=resume")


def test_groups_and_accounts_of_the_user_count(cluster: Cluster) -> None:
    partition = ("scontrol", "update", "partitionname=cas_v100_2")
    instead = "partition skl chosen: 1 of 1 nodes idle"
    cluster.administer("sacctmgr", "-i", "add", "account", "ai", "cluster=ctrain")
    cluster.administer("sacctmgr", "-i", "add", "user", "researcher", "account=ai", "cluster=ctrain")
    try:
        cluster.administer(*partition, "AllowGroups=daemon")
        assert reason(cluster) == f"{instead}, the first that fits"  # Slurm does not show it
        cluster.administer(*partition, "AllowGroups=ALL", "AllowAccounts=bio")
        assert reason(cluster) == f"{instead}, instead of the default cas_v100_2 (closed to account ai)"
        assert reason(cluster, "--account", "bio") == default(cluster.nodes)
    finally:
        cluster.administer(*partition, "AllowGroups=ALL", "AllowAccounts=ALL")
        cluster.administer("sacctmgr", "-i", "delete", "user", "researcher")
        cluster.administer("sacctmgr", "-i", "delete", "account", "ai")


def test_a_partition_of_several_kinds_gives_a_job_nodes_of_one(cluster: Cluster) -> None:
    """V100, A100 and a node without GPUs: where others would do, too, Slurm is asked for the type of the job's size."""
    settings = ("nodes=ALL", "DefMemPerCPU=1024", "PriorityTier=10", "CpuBind=none")
    cluster.administer("scontrol", "create", "partitionname=mixed", *settings)
    try:
        by_type = ", asked for by type"
        for asked, nodes, gpus, how, host in ((2, 2, "v100", by_type, "node"), (8, 1, "a100", "", "a100nv")):
            options = ("--partition=mixed", "--name", gpus, "--nodes", str(nodes), "--gpus-per-node", str(asked))
            run = ("ctrain", "run", *options, "--image", "pytorch-cpu", "--launcher", "env", "--ranks-per-node", "1")
            command = ("--", "sh", "-c", "echo GPUs: $CUDA_VISIBLE_DEVICES")
            planned = cluster.run(*run, "--dry-run", *command)
            assert f"with {asked} GPUs ({gpus}){how}; it also has" in planned.stdout, planned.stderr
            done = cluster.run(*run, *command)
            assert (done.returncode, f"GPUs: {','.join(map(str, range(asked)))}" in done.stdout) == (0, True), done
            hosts = cluster.record(gpus)["nodes"]
            assert len(hosts) == nodes and all(name.startswith(host) for name in hosts)
    finally:
        cluster.administer("scontrol", "delete", "partitionname=mixed")

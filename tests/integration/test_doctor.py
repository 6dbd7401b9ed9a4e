"""ctrain doctor and ctrain site init as the researcher sees them, on the login node and on a compute node."""

from __future__ import annotations

import json

from samples.cluster import Cluster

CHECKS = [
    "engine",
    "namespaces",
    "fuse",
    "subuid",
    "scheduler",
    "clock",
    "image",
    "nodes",
    "mpi",
    "fabric",
    "runs",
    "home",
]


def test_nothing_is_wrong_on_the_login_node_and_in_a_job(cluster: Cluster) -> None:
    doctor = ("ctrain", "doctor", "--json", "--image", "pytorch-cpu")
    for argv in (doctor, ("srun", "--partition=debug", "--ntasks=1", *doctor)):
        done = cluster.run(*argv)
        assert done.returncode == 0, done.stdout + done.stderr
        findings = json.loads(done.stdout)["findings"]
        assert set(CHECKS) <= {finding["subject"] for finding in findings}
        assert {finding["level"] for finding in findings} <= {"ok", "warn"}
        assert "skl (" in next(finding["text"] for finding in findings if finding["subject"] == "scheduler")


def test_a_first_site_file_is_valid_and_runs(cluster: Cluster) -> None:
    variables = {"XDG_CONFIG_HOME": str(cluster.home / "first")}
    done = cluster.run("ctrain", "site", "init", "first", **variables)
    try:
        assert done.returncode == 0, done.stderr
        text = (cluster.home / "first/ctrain/sites/first.yaml").read_text()
        assert f"cas_v100_2: {{nodes: {cluster.nodes}, cpus: 2, gpus: 2, gpu_type: v100, arch: x86_64" in text
        assert "mpi: [pmix, pmi2]    # of " in text
        assert cluster.run("ctrain", "site", "check", "first", **variables).returncode == 0
        command = ("--name", "first", "--launcher", "env", "--", "python", "-c", "print('runs')")
        done = cluster.run("ctrain", "run", "--partition", "debug", "--image", "pytorch-cpu", *command, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "site      first (detected: " in done.stdout
    finally:
        cluster.run("rm", "-rf", str(cluster.home / "first"))


def test_a_site_file_is_compared_with_the_cluster(cluster: Cluster) -> None:
    """As the cluster shows itself, then with a value of each kind that differs; a plugin that lacks a library."""
    folder = cluster.home / "compared"
    variables = {"XDG_CONFIG_HOME": str(folder)}
    try:
        assert cluster.run("ctrain", "site", "init", "compared", **variables).returncode == 0
        path = folder / "ctrain/sites/compared.yaml"
        own = path.read_text()
        done = cluster.run("ctrain", "site", "check", "compared", **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
        assert any(line.startswith("partitions ok agree with slurm: ") for line in lines), done.stdout
        plugin = "/usr/lib/x86_64-linux-gnu/slurm-wlm/accounting_storage_mysql.so"  # the image has no MariaDB
        more = f"""
staging: /dev/shm
engine: {{path: apptainer, version: 1.0.0}}
mounts: ["{plugin}:/opt/plugin/libnccl-net.so:ro"]
library_paths: [/opt/plugin]
nccl_network: AWS Libfabric
"""
        path.write_text(own.replace("mpi: [pmix, pmi2]", "mpi: [pmix_v9]").replace("cpus: 2,", "cpus: 48,") + more)
        done = cluster.run("ctrain", "site", "check", "compared", "--image", "pytorch-cpu", **variables)
        assert done.returncode == 67, done.stdout + done.stderr
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
        for expected in (
            "partition cas_v100_2 fail differs: cpus 48, here 2 ",
            "mpi fail differs: none of pmix_v9 is offered here (",
            "engine fail apptainer 1.0.0: differs: here apptainer 1.",
            "staging fail /dev/shm: differs: it is memory of the node (tmpfs), not a disk of the node",
            "NCCL plugin fail /opt/plugin/libnccl-net.so: differs: lacks libmariadb.so.3 ",
        ):
            assert any(line.startswith(expected) for line in lines), f"{expected}\n{done.stdout}"
    finally:
        cluster.run("rm", "-rf", str(folder))

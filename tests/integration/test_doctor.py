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

"""A sweep of a directory job on real Slurm, in the real image: one at a time, one of which fails."""

from __future__ import annotations

import json

from samples.cluster import Cluster

TRAIN = """\
    import json, os, sys
    import settings

    lr = float(sys.argv[sys.argv.index("--lr") + 1])
    with open(os.environ["CTRAIN_RUN_DIR"] + "/metrics.jsonl", "a") as metrics:
        metrics.write(json.dumps({"step": 1, "steps": 1, "loss": lr * settings.FACTOR}) + "\\n")
    with open("outputs/losses", "a") as shared:
        shared.write(f"{lr}\\n")
    open("beside", "w").close()
    sys.exit(3 if lr == 2 else 0)
"""


def test_a_sweep_of_code_that_is_edited_while_it_waits(cluster: Cluster) -> None:
    cluster.write("job/job.yaml", "image: pytorch-cpu\nlauncher: env\ncommand: [python, train.py]\n")
    cluster.write("job/train.py", TRAIN)
    cluster.write("job/settings.py", "FACTOR = 10\n")
    cluster.write("job/outputs/losses", "")
    cluster.write("job/.ctrainignore", "outputs/\n")
    line = ["--name", "s", "--nodes", "1", "--ranks-per-node", "1", "--gpus-per-node", "0", "--time", "5"]
    done = cluster.run("ctrain", "submit", "./job", *line, "--sweep", "lr=1,2,3", "--at-once", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.write("job/settings.py", "raise SystemExit(9)\n")
    done = cluster.run("ctrain", "wait", "s")
    assert done.returncode == 3, done.stdout + done.stderr
    shown = json.loads(cluster.run("ctrain", "status", "s", "--json").stdout)
    assert [(run["state"], run["metrics"]["loss"]) for run in shown["runs"]] == [
        ("completed", 10.0),
        ("failed (3)", 20.0),
        ("completed", 30.0),
    ]
    starts = [cluster.record(f"s-{number}")["start"] for number in (1, 2, 3)]
    assert starts == sorted(starts)
    assert (cluster.home / "job/outputs/losses").read_text().splitlines() == ["1.0", "2.0", "3.0"]
    assert not (cluster.home / "job/beside").exists()
    assert (cluster.home / "ctrain-runs/s-1/code/beside").exists()

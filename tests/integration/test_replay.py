"""A run of real Slurm, replayed on site local in the real image: the same losses, and what differs by name."""

from __future__ import annotations

import json

from samples.cluster import Cluster

TRAIN = """\
    import json, os, sys
    import torch

    torch.manual_seed(int(sys.argv[sys.argv.index("--seed") + 1]))
    torch.set_num_threads(1)
    scale = float(open("/data/scale").read()) * (2 if os.environ["COLOUR"] == "red" else 1)
    inputs = torch.randn(64, 8)
    targets = inputs.sum(1, keepdim=True) * scale
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with open(os.environ["CTRAIN_RUN_DIR"] + "/metrics.jsonl", "w") as metrics:
        for step in range(1, 6):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(json.dumps({"step": step, "steps": 5, "loss": loss.item()}), file=metrics)
"""


def test_recorded_on_slurm_replayed_on_this_machine(cluster: Cluster) -> None:
    job = "image: pytorch-cpu\nlauncher: env\nparameters: {seed: 1}\nenv: {COLOUR: red}\ncommand: [python, train.py]\n"
    cluster.write("job/job.yaml", job)
    cluster.write("job/train.py", TRAIN)
    data = cluster.write("data/scale", "3\n")
    size = ("--nodes", "1", "--ranks-per-node", "1", "--gpus-per-node", "0", "--time", "5")
    done = cluster.run("ctrain", "run", "./job", "--name", "recorded", "--data", str(data.parent), *size)
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.write("job/train.py", "raise SystemExit(9)\n")  # of no account: the run has a copy

    here = ("ctrain", "replay", "recorded", "--site", "local", "--strict", "--tolerance", "0")
    done = cluster.run(*here, "--name", "again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses agree at all 5 equal steps within 0 (relative)" in done.stdout
    table = done.stdout.partition("\nsite      local (requested)")[0].splitlines()
    assert {line.split("  ")[0] for line in table[1:]} <= {"site", "partition", "time limit", "launcher"}, table

    cluster.write("data/scale", "2\n")  # one bit of it, and one of the seed
    changed = ("--set", "seed=0", "--env", "COLOUR=ree", "--name", "changed")
    done = cluster.run(*here, *changed)
    assert done.returncode == 86, done.stdout + done.stderr
    recorded = json.loads(cluster.runs("recorded").joinpath("metrics.jsonl").read_text().splitlines()[0])["loss"]
    assert f"losses part at step 1: {recorded!r} recorded" in done.stdout
    for name in ("parameter seed", "env COLOUR", "data file scale"):
        assert f"\n{name}  " in done.stdout, done.stdout

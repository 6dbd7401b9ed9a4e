"""A training on two nodes of the real Slurm, of which one rank hangs while the other waits in a collective: it is named
by its stack, and the program starts again in the same job."""

from __future__ import annotations

import json

from samples.cluster import Cluster

TRAIN = """
import datetime, os, time
print("starting", flush=True)
import torch, torch.distributed as dist

def load(step):
    if step == 3 and dist.get_rank() == 1 and os.environ["CTRAIN_ATTEMPT"] == "0":
        time.sleep(600)
    return torch.ones(4)

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
for step in range(6):
    batch = load(step)
    dist.all_reduce(batch)
    print("step", step, flush=True)
dist.destroy_process_group()
"""
RUN = ("ctrain", "run", "--nodes", "2", "--ranks-per-node", "1", "--image", "pytorch-cpu", "--preflight", "off")
HANG = ("--launcher", "env", "--hang-after", "15s", "--on-hang", "restart", "--restarts", "1", "--name", "hangs")


def test_a_rank_that_hangs_is_named_and_the_run_goes_on(cluster: Cluster) -> None:
    cluster.write("hangs.py", TRAIN)
    done = cluster.run(*RUN, *HANG, "--env", "OMP_NUM_THREADS=1", "--", "python", "hangs.py", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (cluster.runs("hangs") / "events.jsonl").read_text().splitlines()]
    (hung,) = (event for event in events if event["what"] == "hung")
    assert hung["ranks"] == [1], hung
    assert "hung (at hangs.py:8 in load: time.sleep(600), last line: step 2); rank 0 on " in hung["message"], hung
    assert "waits (at hangs.py:14 in <module>: dist.all_reduce(batch), last line: step 2)" in hung["message"], hung
    (restart,) = cluster.record("hangs")["restarts"]
    assert restart["reason"].startswith("hung: no sign of life for "), restart
    assert "all_reduce" in (cluster.runs("hangs") / "stacks/rank0.txt").read_text()

"""The program of restart.py: two ranks train a layer with Gloo, and resume from its snapshot. It knows no launcher.

steps.py DIRECTORY    rank 0 appends a line per step to steps.jsonl there; pid.RANK is the process of a rank
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SAVED_EVERY = 10


def fields(pid: int) -> list[str]:
    """Of /proc/PID/stat (proc(5)), from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def born(pid: int) -> float:
    """When a process was created, in seconds since the epoch."""
    ticks = int(fields(pid)[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def starter() -> int:
    """The torchrun above this process; without one, this process."""
    pid = os.getpid()
    while pid > 1:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(word.endswith((b"/torchrun", b"torch.distributed.run")) for word in words):
            return pid
        pid = int(fields(pid)[1])
    return os.getpid()


def main() -> None:
    directory, began = Path(sys.argv[1]), {"born": born(os.getpid()), "command": born(starter())}
    snapshot, step = directory / "snapshot.pt", 0
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    (directory / f"pid.{rank}").write_text(str(os.getpid()))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if snapshot.exists():
        state = torch.load(snapshot)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    with (directory / "steps.jsonl").open("a") as lines:
        while True:
            optimizer.zero_grad()
            model(torch.ones(8, 256)).square().mean().backward()
            optimizer.step()
            step += 1
            time.sleep(0.05)  # the computation of a larger model
            if rank == 0:
                print(json.dumps({"time": time.time(), "step": step, **began}), file=lines, flush=True)
            if rank == 0 and step % SAVED_EVERY == 0:
                torch.save({"step": step, "model": model.module.state_dict()}, directory / "snapshot.tmp")
                (directory / "snapshot.tmp").replace(snapshot)


if __name__ == "__main__":
    main()

"""A run as a process of this machine: site `local`, or a job step inside the user's own allocation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ctrain_runtime.plan.model import Launch
from ctrain_runtime.schedulers.handle import Status


@dataclass(frozen=True)
class Process:
    """Implements Handle for a process group of its own, so that Ctrl-C reaches ctrain alone, which then cancels it."""

    popen: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        return f"process {self.popen.pid}"

    def status(self) -> Status:
        code = self.popen.poll()
        return Status("running") if code is None else Status("ended", "" if code == 0 else f"exit code {code}")

    def finish(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=10)

    def cancel(self) -> None:
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGTERM)


def start(launch: Launch) -> Process:
    # The scripts write their own logs; whatever bash or srun say goes to the job's log.
    with (Path(launch.plan.run_directory) / "logs" / "job.log").open("ab") as log:
        popen = subprocess.Popen(
            launch.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=launch.plan.run_directory,
            start_new_session=True,
        )
    return Process(popen)

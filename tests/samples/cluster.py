"""The one-machine cluster of tests/cluster, seen by the researcher on its login node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

ENTRY = str(Path(__file__).parents[1] / "cluster" / "cluster")
Done = subprocess.CompletedProcess[str]

_started: list[subprocess.Popen[str]] = []  # by the test that runs


@dataclass(frozen=True)
class Cluster:
    """`state` is the cluster's folder, `home` the researcher's."""

    state: Path
    home: Path

    @property
    def store(self) -> Path:
        return self.state / "apps" / "ctrain"

    @property
    def image(self) -> Path:
        """The published `pytorch-cpu`."""
        return next(self.store.glob("pytorch-cpu_*.sif"))

    @property
    def digest(self) -> str:
        """Of the `pytorch-cpu` that runs get."""
        image = (self.store / "channels" / "pytorch-cpu_prod.sif").resolve()
        return str(json.loads(image.with_suffix(".json").read_text())["digest"])

    @property
    def digits(self) -> Path:
        return self.state / "data" / "digits"

    @property
    def nodes(self) -> int:
        """How many nodes with V100s it has: 2, unless somebody has started it with more."""
        return int(self.run("sinfo", "--noheader", "--partition=cas_v100_2", "--format=%D").stdout)

    def grow(self, nodes: int) -> None:
        """To at least this number of nodes with V100s; what runs there ends."""
        if self.nodes < nodes:
            subprocess.run([ENTRY, "up", "--nodes", str(nodes)], check=True)

    @property
    def confines(self) -> bool:
        """Whether jobs are held to the memory and GPUs that they asked for: the kernel has cgroup v1."""
        return "task/cgroup" in (self.state / "etc" / "slurm.conf").read_text()

    def command(self, *argv: str, cwd: Optional[Path] = None, **variables: str) -> list[str]:
        """The argv that runs `argv` as the researcher."""
        path = f"{self.state}/apps/venv/bin:/usr/local/bin:/usr/bin:/bin"
        settings = {"CTRAIN_STORE": str(self.store), "PATH": path, **variables}
        options = [word for name, value in settings.items() for word in ("--setenv", f"{name}={value}")]
        return [ENTRY, "run", "--cwd", str(cwd or self.home), *options, "--", *argv]

    def run(self, *argv: str, cwd: Optional[Path] = None, timeout: float = 300, **variables: str) -> Done:
        command = self.command(*argv, cwd=cwd, **variables)
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout)

    def start(
        self, *argv: str, cwd: Optional[Path] = None, around: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        """The same in the background, in a session of its own, by a command of root's `around` it; no signal is
        ignored, as it may be for tests."""
        command = ["env", "--default-signal=INT,HUP", *around, *self.command(*argv, cwd=cwd, **variables)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, text=True, start_new_session=True, **streams)
        _started.append(process)
        return process

    def administer(self, *argv: str) -> str:
        """The output of a command of Slurm that root runs."""
        environment = {**os.environ, "SLURM_CONF": str(self.state / "etc/slurm.conf")}
        return subprocess.run(argv, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def jobs(self) -> set[str]:
        """The jobs of the researcher that have not ended."""
        return set(self.administer("squeue", "--noheader", "--user=researcher", "--format=%A").split())

    def end_all(self, *, but: set[str]) -> None:
        """End what a test has left, which would be in the way of the next: programs in the background, all jobs but
        these, and runs on this machine."""
        for process in _started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout:
                process.stdout.close()
        _started.clear()
        left = self.jobs() - but
        if left:
            self.administer("scancel", *sorted(left))
            until(lambda: not self.jobs() - but, "the end of jobs that a test left", 120)
        mark = f"CTRAIN_RUN_DIR={self.home}/ctrain-runs/".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended
                if any(entry.startswith(mark) for entry in path.read_bytes().split(b"\0")):
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def runs(self, name: str) -> Path:
        """The directory of a run."""
        return self.home / "ctrain-runs" / name

    def record(self, name: str) -> dict[str, Any]:
        data = json.loads((self.home / "ctrain-runs" / name / "record.json").read_text())
        assert isinstance(data, dict)
        return data

    def write(self, path: str, text: str) -> Path:
        """A file of the researcher's, below his home."""
        target = self.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text))
        subprocess.run(["chown", "-R", "researcher:", str(target.parent)], check=True)
        return target


def until(condition: Callable[[], bool], event: str, seconds: float = 60) -> None:
    """Wait until `condition` holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{event} did not happen in {seconds} s"
        time.sleep(0.2)


def started(run: Path) -> int:
    """How many ranks of a run have started."""
    return sum(path.read_text().count('"started"') for path in (run / "nodes").glob("*.jsonl"))

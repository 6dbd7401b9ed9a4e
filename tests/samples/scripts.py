"""Runs the rendered scripts for real: bash, a fake engine, real processes, no container and no cluster."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctrain_runtime.base import run_files
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.plan.model import LaunchPlan
from samples.plans import LOCAL, a_job, a_launch, a_manifest, a_plan, an_image, some_facts
from samples.programs import SYSTEM, install
from samples.runs import created

NO_LAYERS = an_image(layers=a_manifest().layers[:1])
WAIT_SECONDS = 120  # after which a test has failed: the machine may be busy


def slurm_task(rank: int = 0, size: int = 1, per_node: int = 8, hosts: str = "gpu01") -> dict[str, str]:
    """What srun tells a task."""
    names = {"PROCID": rank, "NTASKS": size, "LOCALID": rank % per_node, "NODEID": rank // per_node}
    step = {"SLURM_STEP_NODELIST": hosts, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    return {**{f"SLURM_{name}": str(number) for name, number in names.items()}, **step}


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or between that and the reading
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


class Scripts:
    """A folder with fakes of the engine and of mpirun, and one run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.run = folder / "run"
        self.homes = folder / "tmp"
        self.homes.mkdir()
        install(self.bin, "apptainer", "mpirun")
        self.engine = Engine("apptainer", str(self.bin / "apptainer"), "1.4.5")

    def plan(
        self, *command: str, launcher: str = "env", local: bool = False, independent: bool = False, **parts: Any
    ) -> LaunchPlan:
        """A plan of `command` in a container without layers; Slurm's unless `local`."""
        facts = LOCAL["facts"] if local else some_facts()
        defaults: dict[str, Any] = {
            "job": a_job(command=command, workdir=str(self.folder), launcher=launcher, independent=independent),
            "facts": facts.__class__(**{**facts.__dict__, "engine": self.engine}),
            "image": NO_LAYERS,
            "ranks_per_node": 1,
            "run_directory": self.run,
            **({"site": LOCAL["site"]} if local else {}),
        }
        return a_plan(**{**defaults, **parts})

    def create(self, plan: LaunchPlan) -> Path:
        return created(a_launch(plan))

    def start(self, script: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a script of the run as a scheduler does; what it prints goes to job.log."""
        with (self.run / run_files.JOB_LOG).open("ab") as log:
            return subprocess.Popen(
                ["/bin/bash", "-p", str(self.run / script)],
                env={"PATH": f"{self.bin}:{SYSTEM}", "TMPDIR": str(self.homes), **environment},
                cwd=self.run,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def execute(self, plan: LaunchPlan, script: str = run_files.TASK_SCRIPT, **environment: str) -> int:
        """Create the run and run a script of it to its end; the exit code."""
        self.create(plan)
        return self.start(script, **environment).wait(WAIT_SECONDS)

    def log(self, rank: int = 0) -> str:
        return (self.run / f"logs/rank{rank}.log").read_text(encoding="utf-8", errors="surrogateescape")

    def job_log(self) -> str:
        return (self.run / run_files.JOB_LOG).read_text(encoding="utf-8")

    def node_events(self, node: int = 0) -> list[dict[str, Any]]:
        """The events of a node, every line of which must be JSON, without times and hosts.

        And without `looked`: on a busy machine, the scan comes by while even a short program runs.
        """
        events = _read_events(self.run / run_files.NODES / f"{node}.jsonl")
        return [event for event in events if event["what"] != "looked"]

    def job_events(self) -> list[dict[str, Any]]:
        return _read_events(self.run / run_files.EVENTS)


def _read_events(path: Path) -> list[dict[str, Any]]:
    events = (
        [json.loads(line) for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()]
        if path.exists()
        else []
    )
    return [{key: value for key, value in event.items() if key not in ("time", "node")} for event in events]

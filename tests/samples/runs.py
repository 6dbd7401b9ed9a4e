"""Runs on this machine with the fake engine: real scripts, real processes, no container."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Union

from samples.plans import a_manifest
from samples.programs import SYSTEM, install
from samples.sample_images import write_image

DEADLINE_SECONDS = 60.0  # of what is waited for: generous, for the machine may be busy
# The handlers are set because a process started in the background of a script has SIGINT switched off.
CTRAIN = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ctrain_runtime import schedulers
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
schedulers.MODULES["toy"] = "samples.toy_scheduler"
sys.exit(main(RUNTIME_VERBS, sys.argv[1:]))
"""


class Bench:
    """A folder with a fake engine and an image, and `ctrain` as a process in it. Its site is local, or the toy's."""

    def __init__(self, folder: Path, site: str = "local") -> None:
        self.folder = folder
        install(folder / "bin", "apptainer", "mpirun", "python")
        self.engine = str(folder / "bin/apptainer")
        # A lone base layer: no marker of upper layers is looked for inside.
        self.image = write_image(folder, layers=a_manifest().layers[:1], software={"torch": "2.13.0"})
        self.runs = folder / "runs"
        self.one = self.runs / "one"
        (folder / "toy").mkdir()
        (folder / "toy.yaml").write_text("name: toy\nscheduler: toy\n")
        self.site = "./toy.yaml" if site == "toy" else site
        package = Path(sys.modules["ctrain_runtime"].__path__[0])
        self.environment = {
            "PATH": f"{folder / 'bin'}:{SYSTEM}",
            "PYTHONPATH": f"{package.parent}:{Path(__file__).parents[1]}",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "TOY_ROOT": str(folder / "toy"),
        }

    def ctrain(self, *arguments: str, streams: Any = None, **variables: str) -> subprocess.Popen[str]:
        """Start `ctrain ARGUMENTS`. `streams` are other values for stdout, stderr ... than pipes."""
        return subprocess.Popen(
            [sys.executable, "-c", CTRAIN, *arguments],
            cwd=self.folder,
            env={**self.environment, **variables},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **(streams or {})},
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
        )

    def run(self, *arguments: str, verb: str = "run", streams: Any = None, **variables: str) -> subprocess.Popen[str]:
        """Start `ctrain run` on the site with the image; the run directory is runs/one."""
        common = (verb, "--site", self.site, "--image", str(self.image), "--runs", str(self.runs), "--name", "one")
        return self.ctrain(*common, *arguments, streams=streams, **variables)

    def attach(self, *arguments: str, run: str = "one", verb: str = "attach") -> subprocess.Popen[str]:
        """Start a verb that acts on a run."""
        return self.ctrain(verb, run, "--site", self.site, "--runs", str(self.runs), *arguments)

    def record(self) -> dict[str, Any]:
        """The record of the run."""
        data = json.loads((self.one / "record.json").read_text(encoding="utf-8"))
        assert isinstance(data, dict)
        return data

    def log(self, rank: int) -> str:
        return (self.one / f"logs/rank{rank}.log").read_text(encoding="utf-8", errors="replace")

    def orphans(self) -> list[int]:
        """The processes of the run that live, however they came to be."""
        mark, found = f"CTRAIN_RUN_DIR={self.one}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0") and not _is_zombie(path.parent):
                    found.append(int(path.parent.name))
        return found

    def end(self) -> None:
        """End what a failed test may have left."""
        for pid in self.orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_zombie(process: Path) -> bool:
    return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def ended(ctrain: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code of `ctrain`, its output and its errors."""
    out, error = ctrain.communicate(timeout=DEADLINE_SECONDS)
    return ctrain.returncode, out, error


def wait_for(condition: Union[Path, Callable[[], object]]) -> None:
    """Wait until a file exists, or a condition holds."""
    holds = condition.exists if isinstance(condition, Path) else condition
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {condition}"
        time.sleep(0.02)

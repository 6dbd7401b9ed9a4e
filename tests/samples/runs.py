"""Runs on this machine with the fake engine: real scripts, real processes, no container."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from samples.plans import a_manifest
from samples.programs import SYSTEM, install
from samples.sample_images import write_image

# The handler is set because a process started in the background of a script has SIGINT switched off.
CTRAIN = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
sys.exit(main(RUNTIME_VERBS, sys.argv[1:]))
"""


class Bench:
    """A folder with a fake engine and an image, and `ctrain` as a process in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        install(folder / "bin", "apptainer", "mpirun")
        self.engine = str(folder / "bin/apptainer")
        # A lone base layer: no marker of upper layers is looked for inside.
        self.image = write_image(folder, layers=a_manifest().layers[:1], software={"torch": "2.13.0"})
        self.runs = folder / "runs"
        package = Path(sys.modules["ctrain_runtime"].__path__[0])
        self.environment = {
            "PATH": f"{folder / 'bin'}:{SYSTEM}",
            "PYTHONPATH": str(package.parent),
            "HOME": str(folder),
            "TMPDIR": str(folder),
        }

    def ctrain(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `ctrain ARGUMENTS`."""
        return subprocess.Popen(
            [sys.executable, "-c", CTRAIN, *arguments],
            cwd=self.folder,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start `ctrain run` on site local with the image; the run directory is runs/one."""
        common = ("run", "--site", "local", "--image", str(self.image), "--runs", str(self.runs), "--name", "one")
        return self.ctrain(*common, *arguments, **variables)

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
from typing import Any, Callable, Optional, Union

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.plan.model import Launch
from ctrain_runtime.run import directory, record
from ctrain_runtime.run.submit import Run, with_job
from ctrain_runtime.schedulers.protocol import FailedTask, Outcome, OutOfMemory, Status
from samples import pbs_stand_in
from samples.plans import a_launch, a_manifest, a_plan
from samples.programs import SYSTEM, install
from samples.sample_images import write_image

DEADLINE_SECONDS = 120.0  # of what is waited for: generous, for the machine may be busy
# The handlers are set because a process started in the background of a script has SIGINT switched off.
CTRAIN = """\
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from ctrain_runtime import schedulers
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime import payload
from ctrain_runtime.run import conclude, interrupts, pick_up, watch
from ctrain_runtime.schedulers.local import script
schedulers.MODULES["toy"] = "samples.toy_scheduler"
script.GRACE_SECONDS = float(os.environ.get("GRACE", script.GRACE_SECONDS))
script.CANCEL_GRACE_SECONDS = float(os.environ.get("GRACE", script.CANCEL_GRACE_SECONDS))
# The schedulers are stand-ins: they may be asked often.
conclude.OUTCOME_POLL_SECONDS, watch.SCHEDULER_POLL_SECONDS, watch.CANCEL_RETRY_SECONDS = 0.05, (0.1, 0.5), 0.5
interrupts.DEBOUNCE_SECONDS = 60  # two signals of a test are one Ctrl-C, however long it has to wait between them
pick_up.SUBMISSION_SECONDS = 0  # what these schedulers have not taken when their lock is free, they never will
grace, text = float(os.environ.get("GRACE", 10)), payload.text
CHANGES = {
    "ct_grace=10 ct_asked_grace=10 ": f"ct_grace={grace} ct_asked_grace={grace} ",
    "ct_grace=15 ct_asked_grace=15 ": f"ct_grace={grace + 5} ct_asked_grace={grace + 5} ",
    "ct_poll=$1 ": "ct_poll=0.1 ",
    "CT_WATCH_AFTER=5 ": f"CT_WATCH_AFTER={os.environ.get('WATCH_AFTER', 5)} ",
    "CT_CANCEL_SECONDS=5 ": "CT_CANCEL_SECONDS=0.2 ",
    "read -r -t 1 -u 4": f"read -r -t {os.environ.get('SCAN_AFTER', 1)} -u 4",  # before the scan starts
}
def changed_text(name):
    if name == "scan.py" and "SCAN" in os.environ:
        return Path(os.environ["SCAN"]).read_text()
    changed = text(name)
    for old, new in CHANGES.items():
        changed = changed.replace(old, new)
    return changed
payload.text = changed_text
sys.exit(main(RUNTIME_VERBS, sys.argv[1:]))
"""


class StandIn:
    """A scheduler that answers what a test says: with the statuses in their order, the last one again and again."""

    def __init__(self, *statuses: Status, failed: Optional[FailedTask] = None, job: str = "") -> None:
        self.statuses, self.failed, self.job = list(statuses) or [Status("running", "R")], failed, job
        self.starved: Optional[OutOfMemory] = None
        self.refusals: list[CtrainError] = []  # of the next cancellations, or of the submission
        self.calls: list[str] = []

    def check(self, *_: object) -> None:
        """Nothing is rejected before it is submitted."""

    def submit(self, *_: object) -> str:
        self.calls.append("submit")
        if self.refusals:
            raise self.refusals.pop(0)
        return "7"

    def find(self, *_: object) -> Optional[str]:
        return self.job or None

    def status(self, *_: object) -> Status:
        self.calls.append("status")
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def cancel(self, *_: object) -> None:
        self.calls.append("cancel")
        if self.refusals:
            raise self.refusals.pop(0)
        self.statuses = [Status("ended", "X", Outcome.CANCELLED_BY_USER)]

    def name(self, job_id: str) -> str:
        return f"job {job_id}"

    def failed_task(self, *_: object) -> Optional[FailedTask]:
        return self.failed

    def is_aftermath(self, *_: object) -> bool:
        return False

    def out_of_memory(self, *_: object) -> Optional[OutOfMemory]:
        return self.starved


def created(launch: Launch) -> Path:
    """The directory of a run as its submission leaves it, without a record."""
    path = directory.create(launch)
    directory.write_plan(launch)
    (path / run_files.SUBMIT_LOCK).write_bytes(run_files.SUBMITTING)
    return path


def submitted(path: Path, scheduler: Any, **parts: Any) -> Run:
    """A run in `path` whose job is number 7, of a plan of these parts."""
    launch = a_launch(a_plan(run_directory=path, **parts))
    created(launch)
    run = Run(launch.plan, record.begin(launch.plan), scheduler)
    record.save(run.record)
    return with_job(run, "7")


def write_events(run: Path, *events: dict[str, Any], node: Optional[int] = None) -> None:
    """Append events of the job, or of a node."""
    file = run / ("events.jsonl" if node is None else f"nodes/{node}.jsonl")
    with file.open("a") as lines:
        lines.writelines(json.dumps({"stage": "run", **event}) + "\n" for event in events)


def write_ranks(run: Path, *codes: Optional[int], per_node: int = 2, ends: float = 110.0) -> None:
    """What ranks write that started at 100 s and ended one second after the other; None: it vanished."""
    for rank, code in enumerate(codes):
        node = rank // per_node
        who = {"node": f"gpu{node:02d}", "rank": rank}
        write_events(run, {"what": "started", "time": 100.0, **who}, node=node)
        if code is not None:
            write_events(run, {"what": "ended", "time": ends + rank, "code": code, **who}, node=node)


def write_signal(run: Path, *ranks: int, name: str = "TERM", time: float = 105.0) -> None:
    """What job.sh and the tasks of `ranks` write that a signal has reached."""
    write_events(run, {"what": "signalled", "time": time, "signal": name})
    for rank in ranks:
        write_events(run, {"what": "signalled", "time": time, "rank": rank, "signal": name}, node=rank // 2)


def write_end(run: Path, code: int) -> None:
    """The first and the last event of a job."""
    write_events(run, {"what": "started", "stage": "before", "time": 99.0, "node": "gpu00", "job": "7"})
    write_events(run, {"what": "ended", "stage": "after", "time": 120.0, "node": "gpu00", "code": code})


class Bench:
    """A folder with a fake engine and an image, and `ctrain` as a process in it. Its site is local, or that of the toy
    or of PBS."""

    def __init__(self, folder: Path, site: str = "local") -> None:
        self.folder = folder
        install(folder / "bin", "apptainer", "mpirun", "python")
        self.engine = str(folder / "bin/apptainer")
        # A lone base layer: no marker of upper layers is looked for inside.
        self.image = write_image(
            folder, layers=a_manifest().layers[:1], software={"torch": "2.13.0", "mpi": "Open MPI 4.1.4"}
        )
        self.runs = folder / "runs"
        self.one = self.runs / "one"
        (folder / "toy").mkdir()
        (folder / "toy.yaml").write_text("name: toy\nscheduler: toy\n")
        if site in ("pbs", "pals"):
            pbs_stand_in.install(folder / "bin", folder / "pbs")
            install(folder / "bin", "mpiexec")
            (folder / ".bash_profile").write_text(f"PATH=$PATH:{folder / 'bin'}\n")  # a job starts in a login shell
            (folder / f"{site}.yaml").write_text(f"name: {site}\nscheduler: pbs\nmpi: [{site}]\n")
        self.site = f"./{site}.yaml" if site in ("toy", "pbs", "pals") else site
        package = Path(sys.modules["ctrain_runtime"].__path__[0])
        self.environment = {
            "PATH": f"{folder / 'bin'}:{SYSTEM}",
            "PYTHONPATH": f"{package.parent}:{Path(__file__).parents[1]}",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "TOY_ROOT": str(folder / "toy"),
            "GRACE": "60",  # seconds: what ends by itself is not killed before, however busy the machine is
        }

    def ctrain(self, *arguments: str, streams: Any = None, **variables: str) -> subprocess.Popen[str]:
        """Start `ctrain ARGUMENTS`. `streams` are other values for stdout, stderr ... than pipes."""
        return subprocess.Popen(
            self.argv(*arguments),
            cwd=self.folder,
            env={**self.environment, **variables},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **(streams or {})},
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
        )

    def run(self, *arguments: str, verb: str = "run", streams: Any = None, **variables: str) -> subprocess.Popen[str]:
        """Start `ctrain run` on the site with the image; the run directory is runs/one."""
        return self.ctrain(*self.run_words(verb), *arguments, streams=streams, **variables)

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", CTRAIN, *arguments]

    def run_words(self, verb: str = "run") -> tuple[str, ...]:
        return verb, "--site", self.site, "--image", str(self.image), "--runs", str(self.runs), "--name", "one"

    def attach(self, *arguments: str, run: str = "one", verb: str = "attach") -> subprocess.Popen[str]:
        """Start a verb that acts on a run."""
        return self.ctrain(verb, run, "--site", self.site, "--runs", str(self.runs), *arguments)

    def record(self) -> dict[str, Any]:
        """The record of the run."""
        data = json.loads((self.one / "record.json").read_text(encoding="utf-8"))
        assert isinstance(data, dict)
        return data

    def ending(self) -> dict[str, Any]:
        """The exit in the record, without the count of ranks that were killed: some stand-ins give no grace period."""
        exit_ = self.record()["exit"]
        return {**exit_, "reason": exit_["reason"].partition("; ")[0]}

    def job_process(self) -> int:
        """The process of the run's job.sh, on site local."""
        return int(self.record()["attempts"][0]["job_id"].split(":")[1])

    def log(self, rank: int) -> str:
        return (self.one / f"logs/rank{rank}.log").read_text(encoding="utf-8", errors="replace")

    def orphans(self) -> dict[int, bytes]:
        """The processes of the run that live on, however they came to be. Programs of tests run for minutes, but
        job.sh ends a moment after its last event."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def processes(self) -> dict[int, bytes]:
        """The processes of the run, each with its command line (proc(5))."""
        mark, found = f"CTRAIN_RUN_DIR={self.one}".encode(), {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0") and not _is_zombie(path):
                    found[int(path.name)] = (path / "cmdline").read_bytes()
        return found

    def end(self) -> None:
        """End what a failed test may have left."""
        pbs_stand_in.end_all(self.folder / "pbs")
        for pid in self.processes():
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

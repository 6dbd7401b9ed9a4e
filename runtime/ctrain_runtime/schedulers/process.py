"""Runs as processes of this machine: all runs of site local, and those inside an allocation that the user has.

Their id is HOST:PID:START, where START is the process's start time in clock ticks since boot (proc(5), stat, field
22): a PID that is reused by another process is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import command, run_files
from ctrain_runtime.errors import CtrainError, SchedulerError
from ctrain_runtime.plan.model import Launch, LaunchPlan
from ctrain_runtime.schedulers.protocol import Outcome, Status

# The id, as job.sh computes it of itself.
JOB_ID = "$(uname -n):$$:$(cut -d ' ' -f 22 /proc/$$/stat)"
GRACE_SECONDS = 10  # between SIGTERM and SIGKILL, where a rank has failed: the others wait for it in vain
CANCEL_GRACE_SECONDS = (
    30  # where somebody has ended the run: a busy machine needs more than 10 to save (seen at load 13)
)
ANSWER_SECONDS, ANSWER_POLL_SECONDS = 15.0, 0.2  # of job.sh on another host, which looks every 5 s

_started: list[subprocess.Popen[bytes]] = []  # kept, so that they are reaped without a warning


def start(launch: Launch, pass_fds: tuple[int, ...] = (), environ: Mapping[str, str] = os.environ) -> str:
    """Start job.sh in a session of its own, so that Ctrl-C reaches only ctrain; its id. Raises SchedulerError.

    It inherits the locked descriptor `pass_fds`, and closes it once it has written its first event.
    """
    run = Path(launch.plan.run_directory)
    lock = {"CTRAIN_LOCK_FD": str(pass_fds[0])} if pass_fds else {}
    try:
        # Ranks write their own logs; messages of bash, srun and mpirun go to the job's log.
        with (run / run_files.JOB_LOG).open("ab") as log:
            popen = subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=run,
                env={**environ, **lock},
                start_new_session=True,
                pass_fds=pass_fds,
            )
    except OSError as error:
        raise SchedulerError(f"cannot start {launch.argv[0]}: {error.strerror}") from error
    _started.append(popen)
    return f"{socket.gethostname()}:{popen.pid}:{_start_time(popen.pid, of_zombies=True)}"


def interact(launch: Launch, environ: Mapping[str, str]) -> int:
    """Run the command of a launch on the terminal of this process; its exit code. Raises SchedulerError if it cannot
    be started."""
    try:
        return command.run_on_terminal(launch.argv, {**environ, "CTRAIN_RUN_DIR": launch.plan.run_directory})
    except CtrainError as error:
        raise SchedulerError(error.message) from error


def status(job_id: str) -> Status:
    """Whether job.sh is running. Its events record how it ended."""
    host, pid, begin = _parts(job_id)
    if host != socket.gethostname():
        return Status("running", note=f"the run is on {host}: whether it lives can be seen there alone")
    for popen in _started:
        popen.poll()
    return Status("running") if _start_time(pid) == begin else Status("ended", outcome=Outcome.UNKNOWN)


def status_in_turn(job_id: str, plan: LaunchPlan) -> Status:
    """The same of a run that may wait for the end of another one."""
    current = status(job_id)
    waits = plan.placement.after and current.phase == "running" and not current.note and not _has_begun(plan)
    return Status("waiting", f"for {name(plan.placement.after)}") if waits else current


def _has_begun(plan: LaunchPlan) -> bool:
    try:
        events = (Path(plan.run_directory) / run_files.EVENTS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return '"stage": "before"' in events


def cancel(job_id: str, run: Path) -> None:
    """Terminate job.sh, which ends its tasks; if it is gone, kill the rest of the run. Raises SchedulerError if it is
    on another host and does not answer."""
    host, pid, begin = _parts(job_id)
    if host != socket.gethostname():
        _cancel_elsewhere(job_id, host, run)
        return
    with contextlib.suppress(ProcessLookupError):
        if _start_time(pid) == begin:
            os.kill(pid, signal.SIGTERM)
            return
    kill_leftovers(run)


def _cancel_elsewhere(job_id: str, host: str, run: Path) -> None:
    """Ask job.sh in writing (job.bash, watch_for_cancel), and wait until it has recorded that, or its end."""
    deadline, why = time.monotonic() + ANSWER_SECONDS, f"no answer from {host}"
    try:
        (run / run_files.CANCELLED).write_text(f"on {socket.gethostname()}\n", encoding="utf-8")
        while time.monotonic() < deadline:
            events = (run / run_files.EVENTS).read_text(encoding="utf-8")
            if '"signalled"' in events or '"ended"' in events:
                return
            time.sleep(ANSWER_POLL_SECONDS)
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    raise SchedulerError(f"cannot cancel {name(job_id)} of {host}: {why}", f"Run ctrain cancel on {host}")


def name(job_id: str) -> str:
    return f"process {_parts(job_id)[1]}"


def _parts(job_id: str) -> tuple[str, int, int]:
    try:
        host, pid, begin = job_id.rsplit(":", 2)
        return host, int(pid), int(begin)
    except ValueError as error:
        raise SchedulerError(f"invalid id of a process: {job_id!r}") from error


def _start_time(pid: int, *, of_zombies: bool = False) -> Optional[int]:
    """When a process started; None if it has ended, be it still there as a zombie, unless that counts."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" and not of_zombies else int(fields[19])


def kill_leftovers(run: Path) -> None:
    """Kill all processes of `run` on this machine; they are stopped first, so that none records the end of another."""
    marked = _marked(run)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _marked(run: Path) -> list[int]:
    """The processes of `run` on this machine, however deep below job.sh: all have its mark in their environment."""
    mark = f"CTRAIN_RUN_DIR={run}".encode(errors="surrogateescape")
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return pids

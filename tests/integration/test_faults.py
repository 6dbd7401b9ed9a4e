"""Faults, injected for real while trainings run on the cluster: what ctrain says of each, how long the training stands
still, and what is lost. CTRAIN_FAULTS=run runs them; =write also keeps what came of them in docs/faults.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

from samples import faults
from samples.cluster import ENTRY, Cluster, until

pytestmark = pytest.mark.skipif("CTRAIN_FAULTS" not in os.environ, reason="half an hour: CTRAIN_FAULTS=run")
UNTOUCHED = Path(__file__).parents[1] / "samples" / "untouched"
PATIENCE = 300
# All nodes share the machine's two cores: more threads would only wait for each other.
OPTIONS = ("--ranks-per-node", "1", "--image", "pytorch-cpu", "--preflight", "off", "--env", "OMP_NUM_THREADS=1")
STEP = re.compile(r"^step (\d+) loss", re.MULTILINE)
RESTARTS = ('"restarted"', '"continued"')
NUMBERS = 160 * 9  # of a shard: 40 steps an epoch


class Training:
    """A run under `name` that goes on in the background, and what ctrain tells of it."""

    def __init__(
        self,
        cluster: Cluster,
        program: str,
        *argv: str,
        job: str = "",
        cwd: Optional[Path] = None,
        runs: Optional[Path] = None,
    ) -> None:
        self.cluster, self.program, self.name = cluster, program, program.lower()
        self.run = (runs or cluster.runs("")) / self.name
        self.told = cluster.home / f"{self.name}.out"
        self.told.unlink(missing_ok=True)
        words = [*([job] if job else []), *OPTIONS, "--name", self.name, *argv]
        self.watches = self._start("ctrain", "run", *words, cwd=cwd)

    def _start(self, *argv: str, cwd: Optional[Path] = None) -> subprocess.Popen[str]:
        return self.cluster.start("bash", "-c", f'exec "$@" >>{self.told} 2>&1', "_", *argv, cwd=cwd)

    def attach(self) -> None:
        self.watches = self._start("ctrain", "attach", str(self.run))

    def steps(self) -> list[int]:
        """In the order in which rank 0 has made them; the last line may be half-written."""
        log = self.run / "logs/rank0.log"
        if lines := metrics(self.run):
            return [line["step"] for line in lines]
        return [int(step) for step in STEP.findall(log.read_text())] if log.exists() else []

    def goes_on(self, more: int = 30) -> None:
        """Wait for that many steps more: with a checkpoint among them, the next failure makes no crash loop."""
        enough = len(self.steps()) + more
        until(lambda: len(self.steps()) >= enough or self.has_ended(), f"{more} more steps", PATIENCE)
        assert not self.has_ended(), self.told.read_text()

    def has_ended(self) -> bool:
        return self.watches.poll() is not None

    def events(self) -> str:
        return (self.run / "events.jsonl").read_text()

    def restarts(self) -> int:
        return sum(map(self.events().count, RESTARTS))

    def line(self, *texts: str) -> str:
        """The last with all of the texts, of what ctrain has told or a rank has logged."""
        found: list[str] = []

        def look() -> bool:
            paths = (*self.run.glob("logs/rank*.log"), self.told)
            lines = [line for path in paths for line in path.read_text().splitlines()]
            found[:] = [line for line in lines if all(text in line for text in texts)]
            return bool(found)

        until(look, f"a line with {texts}", PATIENCE)
        return found[-1].replace(str(self.cluster.home), "~")

    def outlives(self, fault: str, inject: Callable[[], object], *texts: str, mend: Callable[[], object] = int) -> None:
        """The program starts again; `mend` is called before. The lines with these texts count."""
        before, began = self.restarts(), time.monotonic()
        inject()
        until(lambda: self.restarts() > before or self.has_ended(), f"a restart after: {fault}", PATIENCE)
        boundary = len(self.steps())
        mend()
        until(lambda: len(self.steps()) > boundary or self.has_ended(), f"a step after: {fault}", PATIENCE)
        seconds, steps = time.monotonic() - began, self.steps()
        assert len(steps) > boundary, self.told.read_text()
        faults.record(
            fault, self.program, "; ".join(map(self.line, texts)), seconds, max(steps[:boundary]) - steps[boundary] + 1
        )

    def is_unharmed(self, fault: str, inject: Callable[[], object], line: str) -> None:
        """No step is lost; the longest pause between two steps counts."""
        before, began = self.restarts(), time.time()
        inject()
        self.goes_on()
        assert self.restarts() == before, self.events()
        times = [line["time"] for line in metrics(self.run)]
        times = [max(at for at in times if at < began), *(at for at in times if at >= began)]
        faults.record(fault, self.program, line, max(later - at for at, later in zip(times, times[1:])), 0)

    def ends(self, fault: str, inject: Callable[[], object], *texts: str) -> None:
        inject()
        self.watches.wait(PATIENCE)
        faults.record(fault, self.program, self.line(*texts), None, None)

    def ranks(self) -> list[int]:
        """The process of each rank: Pythons of the run whose command begins with the program."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                words = (path / "cmdline").read_text().split("\0")
                pairs = (path / "environ").read_text().split("\0")
                values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
                is_program = "python" in words[0] and any(word.startswith("train") for word in words[1:3])
                if is_program and values.get("CTRAIN_RUN_DIR") == str(self.run):
                    found[int(values.get("RANK", values.get("SLURM_PROCID", "0")))] = int(path.name)
        return [found[rank] for rank in sorted(found)]

    def send(self, number: signal.Signals) -> None:
        """To the last rank."""
        ranks = self.ranks()
        assert len(ranks) == 2, ranks
        os.kill(ranks[-1], number)

    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.run / "record.json").read_text()))

    def job(self) -> str:
        return str(self.record()["attempts"][-1]["job_id"])

    def nodes(self) -> list[str]:
        """Of the ranks that were started last, in their order."""
        events = [json.loads(path.read_text().splitlines()[-1]) for path in sorted(self.run.glob("nodes/?.jsonl"))]
        return [str(event["node"]) for event in events]

    def lose_shell(self) -> None:
        os.killpg(self.watches.pid, signal.SIGKILL)
        self.watches.wait()
        self.attach()

    def damage(self) -> None:
        """The newest checkpoint, once there are two; then a rank is killed."""
        newest = sorted((self.run / "checkpoint").glob("step-*/.metadata"))[-1].parent
        part = next(newest.glob("*.distcp"))
        part.write_bytes(part.read_bytes()[:-100] + bytes(100))
        self.send(signal.SIGKILL)

    def preempt(self) -> None:
        """By a job that wants all nodes."""
        nodes = f"--nodes={self.cluster.nodes}"
        self.cluster.start("srun", "--partition=cas_v100_2", nodes, "--exclusive", "--time=1", "true")
        self._start_again()

    def meet_limit(self) -> None:
        self.cluster.administer("scontrol", "update", f"JobId={self.job()}", "EndTime=now+1")
        self._start_again()

    def _start_again(self) -> None:
        """At once: Slurm lets two minutes pass."""
        job = self.job()
        queue = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        until(lambda: self.cluster.administer(*queue).strip() == "PENDING", "the job in the queue again", PATIENCE)
        self.cluster.administer("scontrol", "update", f"JobId={job}", "StartTime=now")


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; one that is not whole is none."""
    lines = []
    if (run / "metrics.jsonl").exists():
        for text in (run / "metrics.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
    return lines


class Shards:
    """The data of the untouched programs, a file per rank. What is wrong with one shows in the rank's next epoch."""

    def __init__(self, cluster: Cluster, program: str) -> None:
        self.directory = cluster.home / f"shards-{program}"
        self.directory.mkdir(exist_ok=True)
        self.code = cluster.home / f"code-{program}"
        shutil.copytree(UNTOUCHED, self.code, dirs_exist_ok=True)
        for path in (self.directory, self.code):
            subprocess.run(["chown", "-R", "researcher:", str(path)], check=True)
        self.good = struct.pack(f"<{NUMBERS}f", *(index % 97 / 97 for index in range(NUMBERS)))
        self.mend(0)
        self.mend()

    def path(self, rank: int = 1) -> Path:
        return self.directory / f"{rank}.bin"

    def put(self, fill: Callable[[Path], object], rank: int = 1) -> None:
        """At once, in the place of what is there."""
        new = self.directory / "new"
        fill(new)
        new.chmod(0o666)
        new.replace(self.path(rank))

    def mend(self, rank: int = 1) -> None:
        self.put(lambda path: path.write_bytes(self.good), rank)


def untouched(cluster: Cluster, program: str, *options: str, command: tuple[str, ...]) -> tuple[Training, Shards]:
    """A training by a program that knows nothing of ctrain, on two nodes."""
    shards = Shards(cluster, program)
    data = ("--nodes", "2", "--data", str(shards.directory))
    return Training(cluster, program, *data, *options, "--", *command, cwd=shards.code), shards


def test_torchrun(cluster: Cluster) -> None:
    snapshot = cluster.runs("torchrun") / "checkpoint/snapshot.pt"
    command = ("torchrun", "--nproc-per-node", "1", "train_torchrun.py", "/data", str(snapshot))
    hangs = ("--restarts", "9", "--hang-after", "20s", "--on-hang", "restart")
    training, shards = untouched(cluster, "torchrun", *hangs, command=command)
    training.goes_on()
    training.outlives("rank killed", lambda: training.send(signal.SIGKILL), "; restarting")
    training.goes_on()
    training.outlives("exit 0 early", lambda: shards.put(Path.touch), "; restarting", mend=shards.mend)
    training.goes_on()
    training.outlives("hung in data loading", lambda: shards.put(os.mkfifo), "hung: ", mend=shards.mend)
    training.goes_on()
    training.outlives("rank hung in a collective", lambda: training.send(signal.SIGSTOP), "hung: ")
    training.goes_on()
    training.ends("crash loop", lambda: shards.put(lambda path: path.write_bytes(b"broken")), "crash loop")


def test_lightning(cluster: Cluster) -> None:
    command = ("python", "train_lightning.py", "/data", str(cluster.runs("lightning") / "checkpoint"), "2")
    training, shards = untouched(cluster, "Lightning", "--restarts", "5", "--mem", "1500M", command=command)
    training.goes_on()
    training.outlives("rank killed", lambda: training.send(signal.SIGKILL), "; restarting")
    training.goes_on()
    if cluster.confines:
        training.outlives("out of memory", lambda: shards.put(huge), "; restarting", mend=shards.mend)
        training.goes_on()
    training.ends("scancel by hand", lambda: cluster.run("scancel", training.job()), "cancelled")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 << 30)


def test_horovod(cluster: Cluster) -> None:
    snapshot = cluster.runs("horovod") / "checkpoint/snapshot.pt"
    command = ("horovodrun", "-np", "2", "python", "train_horovod.py", "/data", str(snapshot))
    options = ("--partition", "spot", "--retries", "3", "--restarts", "1")
    training, shards = untouched(cluster, "Horovod", *options, command=command)
    training.goes_on()
    training.outlives("rank killed", lambda: training.send(signal.SIGKILL), "; restarting")
    for fault, end in (("preemption", training.preempt), ("time limit", training.meet_limit)):
        training.goes_on()
        training.outlives(fault, end, "was queued again")
    training.goes_on()
    for rank in (0, 1):
        shards.put(Path.touch, rank)  # no more data
    training.watches.wait(PATIENCE)
    assert training.watches.returncode == 0, training.told.read_text()


# It trains until it is cancelled: how many steps there are meanwhile depends on the machine.
GPT = ("steps=1000000", "save_every=50", "validate_every=0", "layers=2", "width=64", "context=32", "batch=16")
GPT += ("sample=0", "strategy=ddp")
BOUND = 2e-6  # as in test_equality.py


@pytest.fixture
def small_disk(cluster: Cluster) -> Iterator[Path]:
    """A directory of 40 MB that all nodes share, of a cluster of three nodes that sees its homes through a file system
    which can be stopped."""
    disk, before = cluster.home / "small", cluster.nodes
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m,mode=1777", "tmpfs", str(disk)], check=True)
    try:
        subprocess.run([ENTRY, "up", "--nodes", "3", "--stale", "1"], check=True)
        yield disk
    finally:
        cluster.run("scancel", "--user", "researcher")
        subprocess.run([ENTRY, "up", "--nodes", str(before)], check=True)
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_gpt(cluster: Cluster, small_disk: Path) -> None:
    spare = ("--nodes", "2", "--spare-nodes", "1", "--restarts", "9", "--runs", str(small_disk))
    training = Training(cluster, "gpt", *spare, "--", *GPT, runs=small_disk, job="gpt")
    training.goes_on(60)
    training.outlives("rank killed", lambda: training.send(signal.SIGKILL), "; restarting")
    training.goes_on(60)
    training.is_unharmed("slurmctld restarted", lambda: restart_slurmctld(cluster), "nothing: the run goes on")
    training.is_unharmed(
        "submitting shell killed", training.lose_shell, "nothing: the run goes on, ctrain attach shows it"
    )
    training.outlives("checkpoint damaged", training.damage, "; restarting", "is damaged")
    assert "is damaged" in (training.run / "logs/rank0.log").read_text()
    training.goes_on(60)
    filling = small_disk / "filling"
    full = ("No space left on device", "; restarting")
    training.outlives("disk full while a checkpoint is written", lambda: fill(filling, training), *full)
    training.goes_on(60)
    stopped = "shared file system frozen for a minute"
    training.is_unharmed(stopped, lambda: freeze(cluster, 60), "nothing: the run goes on")
    node = training.nodes()[-1]
    training.outlives("node lost", lambda: subprocess.run([ENTRY, "kill-node", node], check=True), "; restarting")
    training.goes_on(60)
    assert cluster.run("ctrain", "cancel", str(training.run)).returncode == 0
    check_curve(training.run)


def check_curve(run: Path) -> None:
    """Each step has one loss, however often it was made: the faults have disturbed nothing."""
    curve: dict[int, list[float]] = {}
    for line in metrics(run):
        curve.setdefault(line["step"], []).append(line["loss"])
    assert sorted(curve) == list(range(1, max(curve) + 1))
    assert sum(len(values) > 1 for values in curve.values()) >= 5, "steps that were made twice"
    for values in curve.values():
        assert values == pytest.approx([values[0]] * len(values), rel=BOUND)


def restart_slurmctld(cluster: Cluster) -> None:
    """It is killed, and comes back after 20 s."""
    config = cluster.state / "etc/slurm.conf"
    subprocess.run(["pkill", "-KILL", "-f", f"slurmctld -f {config}"], check=True)
    time.sleep(20)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["slurmctld", "-f", str(config)], check=True, **streams)


def fill(path: Path, training: Training) -> None:
    """Until the ranks that cannot save have ended. Their logs, which are on the same disk, have space for the cause."""
    ranks = training.ranks()
    for log in training.run.glob("logs/rank*.log"):
        length = str(log.stat().st_size + (64 << 10))
        subprocess.run(["fallocate", "--keep-size", "--length", length, str(log)], check=True)
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"0" * 4096):
            pass
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), "the end of the ranks", PATIENCE)
    path.unlink()


def freeze(cluster: Cluster, seconds: float) -> None:
    """Stops what shows the homes on the nodes and the login node, as a file server that does not answer."""
    done = subprocess.run(
        ["pgrep", "-f", f"^bindfs .*{cluster.state}/home"], capture_output=True, text=True, check=True
    )
    servers = [int(pid) for pid in done.stdout.split()]
    assert len(servers) > 3, servers
    for number, wait in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0)):
        for pid in servers:
            os.kill(pid, number)
        time.sleep(wait)

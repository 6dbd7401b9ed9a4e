"""Runs from a user's own machine: ctrain of this checkout, OpenSSH's client, and its server on the login node."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from samples.cluster import Cluster, Done, started, until
from samples.programs import write_program

SSHD = Path("/usr/sbin/sshd")
TRAIN = """\
import os, sys, time

time.sleep(float(os.environ["PAUSE"]))
with open(os.environ["CTRAIN_RUN_DIR"] + "/metrics.jsonl", "w") as metrics:
    metrics.write('{"step": 1, "steps": 1, "loss": %s}' % sys.argv[sys.argv.index("--lr") + 1] + "\\n")
"""
WAIT = """\
import os, time

while not os.path.exists(os.environ["CTRAIN_RUN_DIR"] + "/go"):
    time.sleep(0.1)
"""
SIZE = ("--nodes", "1", "--ranks-per-node", "1", "--gpus-per-node", "0", "--time", "5")


@dataclass(frozen=True)
class OnTerminal:
    """ctrain on a terminal of its own, of which `terminal` is the other end."""

    process: subprocess.Popen[bytes]
    terminal: int
    shown: list[bytes] = field(default_factory=list)

    def until(self, condition: Callable[[], bool], event: str) -> None:
        """Wait, and read what comes to the terminal, so that nobody waits to write there."""
        try:
            until(lambda: self._read() and condition(), event, 240)
        finally:
            print(b"".join(self.shown).decode(errors="replace"))  # of a test that fails

    def _read(self) -> bool:
        while select.select([self.terminal], [], [], 0)[0]:
            try:
                self.shown.append(os.read(self.terminal, 1 << 16))
            except OSError:  # nobody has it open any more
                break
        return True


@dataclass(frozen=True)
class Laptop:
    """A home of its own, with a key for the login node, which its ssh calls `login`, and `far` behind a jump host."""

    home: Path
    log: Path  # of sshd

    def ctrain(self, *arguments: str) -> Done:
        return subprocess.run(
            self._argv(*arguments), cwd=self.home, env=self._environment, capture_output=True, text=True, timeout=600
        )

    def on_terminal(self, *arguments: str) -> OnTerminal:
        terminal, inside = pty.openpty()
        streams = {"stdin": inside, "stdout": inside, "stderr": inside}
        argv = ["setsid", "--ctty", *self._argv(*arguments)]
        process = subprocess.Popen(argv, cwd=self.home, env=self._environment, **streams)
        os.close(inside)
        return OnTerminal(process, terminal)

    def job(self, program: str) -> None:
        """The directory `job`, with this program."""
        job = self.home / "job"
        job.mkdir()
        (job / "job.yaml").write_text("image: pytorch-cpu\nlauncher: env\ncommand: [python, train.py]\n")
        (job / "train.py").write_text(program)

    def logins(self) -> int:
        """How often a key was accepted."""
        return self.log.read_text().count("Accepted publickey")

    @property
    def _environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": f"{self.home}/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm"}

    def _argv(self, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).with_name("ctrain")), *arguments]


@pytest.fixture
def laptop(cluster: Cluster, tmp_path: Path) -> Iterator[Laptop]:
    if not SSHD.exists():
        pytest.skip("no OpenSSH server on this machine; tests/cluster/install brings it")
    place, home = cluster.home / ".sshd", tmp_path / "laptop"
    shutil.rmtree(place, ignore_errors=True)  # of tests that were killed
    for folder in (place, home / "bin", cluster.home / "ctrain/bin"):
        folder.mkdir(parents=True, exist_ok=True)
    for key in (place / "host", home / "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    shutil.copy(home / "key.pub", place / "authorized")
    (cluster.home / "ctrain/bin/ctrain").unlink(missing_ok=True)
    (cluster.home / "ctrain/bin/ctrain").symlink_to(cluster.state / "apps/venv/bin/ctrain")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = f"CTRAIN_STORE={cluster.store} SLURM_CONF={cluster.state}/etc/slurm.conf"
    cluster.write(
        ".sshd/conf",
        f"""\
        Port {port}
        ListenAddress 127.0.0.1
        HostKey {place}/host
        AuthorizedKeysFile {place}/authorized
        PidFile none
        UsePAM no
        StrictModes no
        PasswordAuthentication no
        SetEnv {variables}
        """,
    )
    (home / "config").write_text(
        f"Host far\n  ProxyJump login\nHost login far\n"
        f"  HostName 127.0.0.1\n  Port {port}\n  User researcher\n  IdentityFile {home}/key\n"
        f"  UserKnownHostsFile {home}/known\n  StrictHostKeyChecking accept-new\n  IdentitiesOnly yes\n"
    )
    write_program(home / "bin/ssh", f'#!/bin/bash\nexec /usr/bin/ssh -F {home}/config "$@"\n')
    # An sshd that is not root cannot give terminals to a group, but does without where it finds none named so.
    groups = Path("/etc/group").read_text().splitlines(keepends=True)
    (home / "group").write_text("".join(line for line in groups if not line.startswith("tty:")))
    without = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/group && exec "$@"', str(home / "group"))
    cluster.start(str(SSHD), "-D", "-E", f"{place}/log", "-f", f"{place}/conf", around=without)
    try:
        until(lambda: _listens(port), "the start of sshd", 120)
        yield Laptop(home, place / "log")
    finally:
        shutil.rmtree(place)
        (cluster.home / "ctrain/bin/ctrain").unlink(missing_ok=True)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_sweep_of_six_runs_by_ssh(laptop: Laptop) -> None:
    """Once cancelled, once finished; its results come back."""
    laptop.job(TRAIN)
    sweep = ("--sweep", "lr=0.1,0.2", "--sweep", "seed=1..3")
    for name, pause in (("cancelled", 600), ("finished", 0)):
        pauses = ("--env", f"PAUSE={pause}")
        done = laptop.ctrain("submit", "./job", "--on", "login", "--name", name, *SIZE, *sweep, *pauses)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"submitted 6 runs; see: ctrain status {name}" in done.stdout
        if name == "cancelled":
            done = laptop.ctrain("cancel", name, "--on", "login")
            assert done.returncode in (0, 72), done.stdout + done.stderr  # 72: some take longer than a minute
    done = laptop.ctrain("wait", "cancelled", "finished", "--on", "login")
    assert done.returncode == 130, done.stdout + done.stderr
    states = {}
    for name in ("cancelled", "finished"):
        shown = laptop.ctrain("status", name, "--json", "--on", "login")
        states[name] = [run["state"] for run in json.loads(shown.stdout)["runs"]]
    assert states == {"cancelled": ["cancelled"] * 6, "finished": ["completed"] * 6}
    done = laptop.ctrain("fetch", "finished", "--on", "login", "--to", "results")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [
        json.loads((laptop.home / f"results/finished-{n}/metrics.jsonl").read_text())["loss"] for n in range(1, 7)
    ]
    assert losses == [0.1] * 3 + [0.2] * 3
    done = laptop.ctrain("report", *(f"results/finished-{number}" for number in range(1, 7)), "-o", "sweep.html")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (laptop.home / "sweep.html").stat().st_size > 10_000


def test_a_login_node_without_ctrain_behind_a_jump_host(laptop: Laptop, cluster: Cluster) -> None:
    """It gets the ctrain of the laptop, once, which then runs a job on the cluster's nodes."""
    (cluster.home / "ctrain/bin/ctrain").unlink()
    copies = cluster.home / ".local/share/ctrain"
    laptop.job(TRAIN)
    try:
        options = ("--on", "far", *SIZE, "--env", "PAUSE=0", "--set", "lr=0.5")
        for name, notes in (("one", 1), ("two", 0)):
            done = laptop.ctrain("run", "./job", "--name", name, *options)
            assert done.returncode == 0, done.stdout + done.stderr
            note = "note      no ctrain on far: this one is now there, in ~/.local/share/ctrain/"
            assert done.stderr.count(note) == notes, done.stderr
            assert cluster.record(name)["exit"]["code"] == 0
        assert laptop.logins() == 4  # of two commands, each at both hosts
        assert len(list(copies.iterdir())) == 1
    finally:
        shutil.rmtree(copies, ignore_errors=True)


def started_on_a_terminal(laptop: Laptop, cluster: Cluster) -> OnTerminal:
    laptop.job(WAIT)
    command = laptop.on_terminal("run", "./job", "--on", "login", "--name", "one", *SIZE)
    process = command.process
    command.until(lambda: started(cluster.runs("one")) > 0 or process.poll() is not None, "the start of a rank")
    assert process.poll() is None
    assert cluster.record("one")["exit"] is None
    return command


def test_ctrl_c_by_ssh_cancels_the_run(laptop: Laptop, cluster: Cluster) -> None:
    command = started_on_a_terminal(laptop, cluster)
    os.write(command.terminal, b"\x03")
    command.until(lambda: command.process.poll() is not None, "the end of ctrain")
    os.close(command.terminal)
    assert command.process.returncode == 130
    assert cluster.record("one")["exit"]["reason"] == "cancelled"


def test_a_closed_terminal_by_ssh_leaves_the_run(laptop: Laptop, cluster: Cluster) -> None:
    command = started_on_a_terminal(laptop, cluster)
    os.close(command.terminal)
    assert command.process.wait(240) != 0
    assert json.loads(laptop.ctrain("status", "one", "--json", "--on", "login").stdout)["state"] == "running"
    (cluster.runs("one") / "go").touch()
    assert laptop.ctrain("wait", "one", "--on", "login").returncode == 0
    assert cluster.record("one")["exit"]["code"] == 0

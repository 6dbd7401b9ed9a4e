"""What a scan sees of the processes of a node: a tree of directories stands for /proc."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Optional

import pytest

from ctrain_runtime.payload import scan as module
from ctrain_runtime.payload.scan import Nested, Processes, Ranks, Report, Scan, verdict

RUN = "/scratch/kim/one"
MEET = ("127.0.0.1", 61001)
OTHER = ("127.0.0.1", 29500)


class Proc:
    """A node's processes, written as proc(5) says."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "proc"
        (self.path / "net").mkdir(parents=True)
        self._rows: dict[str, list[str]] = {"tcp": [], "tcp6": []}
        self._next = 100
        self._inode = 5000
        self.connect(None, None, ("10.0.0.1", 22), ("10.9.9.9", 4000))  # somebody's ssh

    def start(self, parent: int, *words: str, **variables: object) -> int:
        """Start a program, by its own execve: with variables of its own."""
        self._next += 1
        text = "".join(f"{name}={value}\0" for name, value in variables.items())
        return self._write(self._next, parent, "".join(f"{word}\0" for word in words), text)

    def fork(self, parent: int) -> int:
        """A forked process: it has the words and variables of its parent."""
        self._next += 1
        words, variables = ((self.path / str(parent) / name).read_text() for name in ("cmdline", "environ"))
        return self._write(self._next, parent, words, variables)

    def task(self) -> int:
        """What the scheduler has started: task.sh, and its subshell that waits for the engine."""
        return self.fork(self.start(1, "/bin/bash", "-p", f"{RUN}/task.sh", RUN, HOME="/home/kim"))

    def rank(self, number: int, size: int = 2, node: int = 0, **more: object) -> int:
        """A rank of launcher env, below a task of its own; its program is in a container."""
        who = {"RANK": number, "WORLD_SIZE": size, "LOCAL_RANK": number, "NODE_RANK": node}
        meet = {"MASTER_ADDR": MEET[0], "MASTER_PORT": MEET[1]}
        variables = {**who, **meet, **more}
        return self.start(self.start(self.task(), "apptainer", "exec", **variables), "bash", "run.sh", **variables)

    def world(self, rank: int, size: int = 2, meet: tuple[str, int] = OTHER, command: str = "x.py") -> list[int]:
        """What torchrun starts in a rank: so many ranks of its own, that meet each other."""
        variables = self.variables(rank)
        agent = self.start(rank, "python", "/usr/bin/torchrun", command, **variables)
        own = {**variables, "WORLD_SIZE": size, "MASTER_ADDR": meet[0], "MASTER_PORT": meet[1]}
        members = [
            self.start(agent, "python", "-u", command, **{**own, "RANK": local, "LOCAL_RANK": local})
            for local in range(size)
        ]
        for number, member in enumerate(members):
            self.connect(member, members[0], ("127.0.0.1", 40000 + member + number), meet)
        return members

    def variables(self, pid: int) -> dict[str, str]:
        words = (self.path / str(pid) / "environ").read_text().split("\0")[:-1]
        return dict(word.split("=", 1) for word in words)

    def connect(
        self, client: Optional[int], server: Optional[int], local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        """A connection of a process, None: of another machine's or user's."""
        for pid, ends in ((client, (local, remote)), (server, (remote, local))):
            self._inode += 1
            kind = "tcp6" if ":" in local[0] else "tcp"
            words = " ".join(f"{_hexadecimal(host)}:{port:04X}" for host, port in ends)
            self._rows[kind].append(f"   0: {words} 01 00000000:00000000 00:00000000 00000000  1000 0 {self._inode} 1")
            if pid is not None:
                self.path.joinpath(str(pid), "fd", str(self._inode)).symlink_to(f"socket:[{self._inode}]")
        for name, rows in self._rows.items():
            (self.path / "net" / name).write_text("\n".join(["  sl  local_address rem_address   st", *rows]) + "\n")

    def hide(self, pid: int) -> None:
        """A process that another user owns, or that may not be looked into: as below a setuid engine."""
        for name in ("environ", "cmdline"):
            (self.path / str(pid) / name).unlink()

    def _write(self, pid: int, parent: int, words: str, variables: str) -> int:
        folder = self.path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd" / "0").symlink_to("/dev/null")
        (folder / "stat").write_text(f"{pid} (a) name) S {parent} 1 1 0 -1 4194560")
        (folder / "cmdline").write_text(words)
        (folder / "environ").write_text(variables)
        return pid


def _hexadecimal(host: str) -> str:
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return "".join(f"{word:08X}" for word in struct.unpack(f"<{len(packed) // 4}I", packed))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run/nodes").mkdir(parents=True)
    return tmp_path / "run"


def joined(proc: Proc, launcher: str = "env", size: int = 2, hosts: Iterable[str] = ()) -> list[int]:
    """The ranks that have joined."""
    ranks = Ranks(RUN, launcher, size, list(hosts))
    processes = Processes(proc.path)
    return sorted(number for _, number in ranks.joined(processes, ranks.find(processes)))


def looked(
    proc: Proc,
    run: Path,
    launcher: str = "env",
    *,
    node: int = 0,
    times: Iterable[float] = (0,),
    size: int = 2,
) -> list[tuple[str, list[int]]]:
    """What a scan writes that looks at these times."""
    before = len(Report(run, node).read())
    scan = Scan(Ranks(RUN, launcher, size, []), Report(run, node), node)
    for now in times:
        scan.look(Processes(proc.path), now)
    return [(event["what"], event.get("ranks", [])) for event in Report(run, node).read()[before:]]


def nested(proc: Proc, launcher: str = "env", size: int = 2) -> dict[int, Nested]:
    """The ranks that have ranks of their own."""
    ranks = Ranks(RUN, launcher, size, [])
    processes = Processes(proc.path)
    found = {number: ranks.nested(processes, pids) for (_, number), pids in ranks.find(processes).items()}
    return {number: value for number, value in found.items() if value}


def test_ranks_at_the_rendezvous_have_joined(proc: Proc) -> None:
    first, second = proc.rank(0), proc.rank(1)
    assert joined(proc) == []
    proc.connect(first, first, ("127.0.0.1", 40000), MEET)
    assert joined(proc) == [0]
    proc.connect(proc.fork(second), first, ("127.0.0.1", 40001), MEET)
    assert joined(proc) == [0, 1]


def test_a_rank_with_ranks_of_its_own_is_nested_and_has_not_joined(proc: Proc) -> None:
    for number in range(2):
        proc.world(proc.rank(number))
    assert joined(proc) == []
    assert set(nested(proc)) == {0, 1}
    assert nested(proc)[0] == Nested((2,), 2, ("python -u x.py", "python -u x.py"), "torchrun")


def test_worlds_that_meet_at_one_port_by_chance_join_nobody(proc: Proc) -> None:
    """As those of two deepspeed: both take 29500, and a rank of the second reaches the first one's."""
    first, second = (proc.world(proc.rank(number)) for number in range(2))
    proc.connect(second[1], first[0], ("127.0.0.1", 45000), OTHER)
    proc.connect(proc.fork(second[1]), first[0], ("127.0.0.1", 45001), ("127.0.0.1", 45002))
    assert joined(proc) == []
    assert set(nested(proc)) == {0, 1}


def test_engines_of_two_ranks_that_speak_to_each_other_show_that_these_have_joined(proc: Proc) -> None:
    first, second = (proc.world(proc.rank(number), meet=("127.0.0.1", 29500 + number)) for number in range(2))
    proc.connect(second[1], first[0], ("127.0.0.1", 45000), ("127.0.0.1", 45002))
    assert joined(proc) == [0, 1]


# Joined: each launcher has its own way, and so has each library.


def test_addresses_of_both_families_are_read(proc: Proc) -> None:
    """torch listens on both: a client's IPv4 address is then one of IPv6, too."""
    first = proc.rank(0, MASTER_ADDR="::1")
    proc.connect(first, None, ("::1", 40000), ("::1", MEET[1]))
    second = proc.rank(1)
    proc.connect(second, None, ("::ffff:127.0.0.1", 40001), ("::ffff:127.0.0.1", MEET[1]))
    assert joined(proc) == [0, 1]


def test_the_rank_that_serves_has_joined_by_what_it_has_accepted(proc: Proc) -> None:
    first = proc.rank(0)
    proc.rank(1)
    proc.connect(None, first, ("10.0.0.2", 40000), MEET)
    assert joined(proc) == [0]


def test_another_port_of_the_first_node_is_not_the_rendezvous(proc: Proc) -> None:
    for number in range(2):
        proc.connect(proc.rank(number), None, ("127.0.0.1", 40000 + number), ("127.0.0.1", MEET[1] + 1))
    assert joined(proc) == []


def test_mpi_is_initialised_once_a_rank_is_at_the_pmix_server_of_its_node(proc: Proc) -> None:
    """As srun and mpirun give it; that of a nested mpirun is another one."""
    server = {"PMIX_SERVER_URI41": "slurm.pmix.7.0;tcp4://127.0.0.1:39001", "PMIX_RANK": "0"}
    ranks = [proc.rank(number, **server) for number in range(2)]
    assert joined(proc, "mpi") == []
    proc.connect(proc.start(ranks[0], "python", "x.py", **proc.variables(ranks[0])), None, MEET, ("127.0.0.1", 39001))
    inner = proc.start(ranks[1], "python", "x.py", PMIX_SERVER_URI41="prterun;tcp4://127.0.0.1:39002")
    proc.connect(inner, None, ("127.0.0.1", 40001), ("127.0.0.1", 39002))
    assert joined(proc, "mpi") == [0]


def test_ranks_of_torchrun_and_mpirun_are_those_below_rank_sh(proc: Proc) -> None:
    task = proc.start(proc.task(), "apptainer", "exec", NODE_RANK=0)
    agent = proc.start(task, "python", "-m", "torch.distributed.run", NODE_RANK=0)
    for number in range(2):
        who = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": 2, "MASTER_ADDR": MEET[0], "MASTER_PORT": MEET[1]}
        rank = proc.start(agent, "/bin/bash", "-p", f"{RUN}/rank.sh", NODE_RANK=0, **who)
        proc.connect(rank, agent, ("127.0.0.1", 40000 + number), MEET)
    assert joined(proc, "torchrun") == [0, 1]
    assert nested(proc, "torchrun") == {}


def test_ranks_that_are_connected_to_each_other_have_joined(proc: Proc) -> None:
    """As Horovod's by Gloo, and programs with a port of their own: both ends are seen on one node."""
    ranks = [proc.rank(number, 3) for number in range(3)]
    proc.connect(ranks[0], ranks[1], ("127.0.0.1", 40000), ("127.0.0.1", 41000))
    proc.connect(ranks[2], ranks[2], ("127.0.0.1", 42000), ("127.0.0.1", 43000))
    assert joined(proc, "gloo", 3) == [0, 1]


def test_a_connection_to_another_host_of_the_run_counts(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"gpu02": "10.1.0.2", "127.0.0.1": "127.0.0.1"}

    def getaddrinfo(host: str, _port: None) -> list[Any]:
        if host not in addresses:
            raise socket.gaierror
        return [(None, None, None, "", (addresses[host], 0))]

    monkeypatch.setattr(module.socket, "getaddrinfo", getaddrinfo)
    first, second = proc.rank(0), proc.rank(1)
    proc.connect(first, None, ("10.1.0.1", 40000), ("10.1.0.2", 50000))
    proc.connect(second, None, ("10.1.0.1", 40001), ("10.1.0.77", 443))  # a web server
    assert joined(proc, "gloo", hosts=["gpu01", "gpu02", "unknown"]) == [0]


def test_a_command_that_starts_the_ranks_says_who_they_are(proc: Proc, run: Path) -> None:
    """Each is at the rendezvous in its own variables; what Hydra has told the task is no rank."""
    hydra = {"PMI_RANK": 0, "PMI_SIZE": 2, "MPI_LOCALRANKID": 0, "PMI_FD": 7}
    task = proc.start(1, "/bin/bash", "-p", f"{RUN}/task.sh", RUN, **hydra)
    agent = proc.start(proc.start(task, "apptainer", NODE_RANK=1, **hydra), "bash", "run.sh", NODE_RANK=1, **hydra)
    for local in range(2):
        who = {"RANK": 2 + local, "LOCAL_RANK": local, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 7777}
        rank = proc.start(agent, "python", "x.py", NODE_RANK=1, **who, **hydra)
        proc.connect(rank, None, ("127.0.0.1", 40000 + local), ("127.0.0.1", 7777))
    assert joined(proc, "node", 2) == [2, 3]
    assert looked(proc, run, "node", node=1) == [("looked", []), ("joined", [2, 3])]


def test_what_cannot_be_looked_into_proves_nothing(proc: Proc) -> None:
    for number in range(2):
        rank = proc.rank(number)
        for member in proc.world(rank):
            proc.hide(member)
        (proc.path / str(rank) / "stat").write_text("")
    assert (joined(proc), nested(proc)) == ([], {})


# Nested: only whole worlds, in several ranks, of the same command, for long.


def two_ranks_nest(proc: Proc) -> None:
    for number in range(2):
        proc.world(proc.rank(number))


def by_mpirun(proc: Proc) -> None:
    for number in range(2):
        rank = proc.rank(
            number, 2, OMPI_COMM_WORLD_RANK=number, OMPI_COMM_WORLD_SIZE=2, PMIX_NAMESPACE="slurm.pmix.7.0"
        )
        mpirun = proc.start(rank, "mpirun", "-np", "2", "python", "x.py", **proc.variables(rank))
        for local in range(2):
            who = {"OMPI_COMM_WORLD_RANK": local, "OMPI_COMM_WORLD_LOCAL_RANK": local, "OMPI_COMM_WORLD_SIZE": 2}
            own = {**proc.variables(rank), **who, "PMIX_NAMESPACE": f"{mpirun}.1"}
            proc.start(mpirun, "python", "x.py", **own)


def by_horovodrun(proc: Proc) -> None:
    """It starts each of its ranks by a process of its own."""
    for number in range(2):
        rank = proc.rank(number)
        starter = proc.start(rank, "python", "/usr/bin/horovodrun", "-np", "2", **proc.variables(rank))
        for local in range(2):
            who = {"HOROVOD_RANK": local, "HOROVOD_LOCAL_RANK": local, "HOROVOD_SIZE": 2}
            own = {**proc.variables(rank), **who, "HOROVOD_GLOO_RENDEZVOUS_PORT": 40000 + number}
            proc.start(proc.start(proc.fork(starter), "bash", "-c", "x", **own), "python", "x.py", **own)


def below_mpirun(proc: Proc) -> None:
    """Only what rank.sh has started knows RANK: the image's mpirun gives its own variables."""
    meet = {"MASTER_ADDR": MEET[0], "MASTER_PORT": MEET[1]}
    agent = proc.start(proc.start(proc.task(), "apptainer", "exec", **meet), "mpirun", "-np", "2", **meet)
    for number in range(2):
        mpi = {"OMPI_COMM_WORLD_RANK": number, "OMPI_COMM_WORLD_LOCAL_RANK": number, "OMPI_COMM_WORLD_SIZE": 2}
        variables = {**meet, **mpi, "PMIX_NAMESPACE": "997064705"}
        script = proc.fork(proc.start(agent, "/bin/bash", "-p", f"{RUN}/rank.sh", **variables))
        own = {"RANK": number, "WORLD_SIZE": 2, "LOCAL_RANK": number, "NODE_RANK": 0}
        proc.world(proc.start(script, "bash", "run.sh", **variables, **own))


@pytest.mark.parametrize(
    ("start", "by", "launcher"),
    [
        (two_ranks_nest, "torchrun", "env"),
        (by_mpirun, "mpirun", "env"),
        (by_horovodrun, "horovodrun", "env"),
        (below_mpirun, "torchrun", "mpirun"),
    ],
)
def test_ranks_that_nest_for_long_are_stopped(
    start: Callable[[Proc], None], by: str, launcher: str, proc: Proc, run: Path
) -> None:
    start(proc)
    times = [0, 1, 29.9]
    assert looked(proc, run, launcher, times=times) == [("looked", []), ("nested", [0, 1])]
    assert verdict(Report(run, 0).read(), 2) == ""
    looked(proc, run, launcher, times=[0, 30])
    reason = f"each of 2 ranks started ranks of its own ({by}, 2 worlds of 2, same command): they would train 2 models"
    assert verdict(Report(run, 0).read(), 2) == reason


def test_each_attempt_has_a_scan_of_its_own(proc: Proc, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of the one before may have joined, or have been stopped."""
    proc.world(proc.rank(0))
    proc.world(proc.rank(1))
    monkeypatch.setenv("CTRAIN_ATTEMPT", "0")
    looked(proc, run, times=[0, 30])
    assert verdict(Report(run, 0).read(), 1)
    monkeypatch.setenv("CTRAIN_ATTEMPT", "1")
    assert Report(run, 0).read() == []
    looked(proc, run, times=[0])
    assert {event["attempt"] for event in Report(run, 0).read()} == {1}


def test_ranks_of_several_nodes_that_nest_are_stopped_by_the_first(proc: Proc, tmp_path: Path, run: Path) -> None:
    others = Proc(tmp_path / "other")
    proc.world(proc.rank(0))
    others.world(others.rank(1, node=1, LOCAL_RANK=0))
    looked(proc, run, times=[0, 30])
    assert verdict(Report(run, 0).read(), 1) == ""
    looked(others, run, times=[0, 30], node=1)
    assert "2 worlds of 2" in verdict(Report(run, 0).read(), 1)


def workers_of_a_data_loader(proc: Proc) -> None:
    for number in range(2):
        rank = proc.rank(number)
        for _ in range(8):
            proc.fork(rank)


def processes_of_multiprocessing(proc: Proc) -> None:
    """torch.multiprocessing.spawn: a world of its own, by variables that are set after the start."""
    for number in range(2):
        rank = proc.rank(number)
        for _ in range(4):
            spawn = ("python", "-c", "from multiprocessing.spawn import spawn_main; ...", "--multiprocessing-fork")
            proc.start(rank, *spawn, **proc.variables(rank))


def an_engine(proc: Proc) -> None:
    """As of vLLM: workers that it spawns, even if it gave each of them variables of its own."""
    for number in range(2):
        rank = proc.rank(number)
        for local in range(4):
            who = {"RANK": local, "LOCAL_RANK": local, "WORLD_SIZE": 4, "MASTER_PORT": 5000 + number}
            spawn = ("python", "-c", "from multiprocessing.spawn import spawn_main; ...", "--multiprocessing-fork")
            proc.start(rank, *spawn, **{**proc.variables(rank), **who})


def an_engine_in_ranks_that_have_joined(proc: Proc) -> None:
    """As of verl: ranks of one world, of which each starts ranks of its own."""
    for number in range(2):
        rank = proc.rank(number)
        proc.world(rank)
        proc.connect(rank, None, ("127.0.0.1", 50000 + number), MEET)


def a_launcher_on_rank_0_alone(proc: Proc) -> None:
    proc.world(proc.rank(0), 4)
    proc.rank(1)


def ray(proc: Proc) -> None:
    """Its workers have no number when they start."""
    for number in range(2):
        raylet = proc.start(proc.rank(number), "raylet", RAY_NODE_ID=number)
        for _ in range(8):
            proc.start(raylet, "ray::IDLE", RAY_JOB_ID=1)


def a_sweep_by_hand(proc: Proc) -> None:
    """Each rank trains a model of its own, and says so."""
    for number in range(2):
        proc.world(proc.rank(number), command=f"x.py --seed={number}")


def parts_of_one_world(proc: Proc) -> None:
    """torchrun in each rank, with a rendezvous of the user's own: each rank has two of four."""
    for number in range(2):
        rank = proc.rank(number)
        agent = proc.start(rank, "python", "/usr/bin/torchrun", **proc.variables(rank))
        for local in range(2):
            who = {"RANK": 2 * number + local, "LOCAL_RANK": local, "WORLD_SIZE": 4, "MASTER_PORT": 29400}
            proc.start(agent, "python", "x.py", **{**proc.variables(rank), **who})


def ranks_of_the_plan_by_another_starter(proc: Proc) -> None:
    """At the run's own rendezvous: a world, if not the plan's."""
    for number in range(2):
        proc.world(proc.rank(number), meet=MEET)


def a_script_of_steps(proc: Proc) -> None:
    for number in range(2):
        proc.start(proc.rank(number), "make", "-j8")


INNOCENT = [
    workers_of_a_data_loader,
    processes_of_multiprocessing,
    an_engine,
    an_engine_in_ranks_that_have_joined,
    a_launcher_on_rank_0_alone,
    ray,
    a_sweep_by_hand,
    parts_of_one_world,
    ranks_of_the_plan_by_another_starter,
    a_script_of_steps,
]


@pytest.mark.parametrize("start", INNOCENT)
def test_nobody_is_stopped_for_anything_else(start: Callable[[Proc], None], proc: Proc, run: Path) -> None:
    start(proc)
    looked(proc, run, times=range(0, 110, 10))
    assert verdict(Report(run, 0).read(), 2) == ""


def test_fewer_ranks_than_the_plan_has_stop_nothing(proc: Proc, run: Path) -> None:
    """Two of eight ranks."""
    for number in range(8):
        rank = proc.rank(number, 8)
        if number < 2:
            proc.world(rank)
    assert looked(proc, run, times=[0, 60], size=8)[-1] == ("nested", [0, 1])
    assert verdict(Report(run, 0).read(), 8) == ""


def test_ranks_that_nest_now_and_then_do_not_last(proc: Proc, tmp_path: Path, run: Path) -> None:
    """A script of short steps: each look sees others."""
    two_ranks_nest(proc)
    idle = Proc(tmp_path / "idle")
    idle.rank(0), idle.rank(1)
    ranks = Ranks(RUN, "env", 2, [])
    scan = Scan(ranks, Report(run, 0), 0)
    for at in range(0, 200, 20):
        scan.look(Processes((proc if at % 40 else idle).path), float(at))
    assert not scan.may_stop


def test_one_rank_that_joins_in_the_end_stops_nothing(proc: Proc, run: Path) -> None:
    two_ranks_nest(proc)
    looked(proc, run, times=[0, 30])
    Report(run, 1).write("joined", ranks=[7], of=8)
    assert verdict(Report(run, 0).read(), 2) == ""


def test_a_node_that_has_written_twice_counts_once(proc: Proc, run: Path) -> None:
    """One rank began to nest before the other."""
    proc.world(proc.rank(0))
    second = proc.rank(1)
    scan = Scan(Ranks(RUN, "env", 2, []), Report(run, 0), 0)
    for now in (0, 10, 30, 40, 70):
        scan.look(Processes(proc.path), now)
        if now == 10:
            proc.world(second)
    assert "2 worlds of 2" in verdict(Report(run, 0).read(), 2)


def test_events_of_others_and_broken_ones_are_passed_over(run: Path) -> None:
    (run / "nodes/0.jsonl").write_text('{"stage": "run", "what": "started", "rank": 0}\n[]\n{"stage": "wor')
    Report(run, 1).write("looked")
    assert [event["what"] for event in Report(run, 0).read()] == ["looked"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 -u -m deepspeed.launcher.launch --world_info=x", "deepspeed"),
        ("python -m torch.distributed.run --nproc-per-node 2 x.py", "torchrun"),
        ("/usr/bin/python3 /usr/local/bin/torchrun x.py", "torchrun"),
        ("/usr/bin/mpirun -np 2 python x.py", "mpirun"),
        ("/bin/bash -e /home/kim/start.sh", "start.sh"),
        ("python", "python"),
        ("", "?"),
    ],
)
def test_what_has_started_ranks_is_named_as_users_know_it(command: str, name: str) -> None:
    assert module._program(command.split()) == name

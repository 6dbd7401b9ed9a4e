"""Looks who joins the world of a run: which ranks of this node hold a connection to the run's rendezvous, to its MPI
or to another rank, and which have started ranks of their own. It writes what it has seen to the node's events.

Usage: scan.py RUN LAUNCHER NODE NODES RANKS_PER_NODE [HOST]..., once per node, by its first task: it looks for as long
as that lives, or until all ranks of the node have joined. The scan of node 0 is the one place that stops a run: it ends
its task with SIGTERM, and itself with code 81. The rules are in docs/one-world.md.

What it cannot read it has not seen: nobody is stopped for a lack of evidence. ctrain copies this file to the run
directory. The node's own Python runs it, from 3.6 on: hence no later annotations.
"""

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

WRONG_WORLD = 81  # exit code, as WorldError in errors.py
EARLY_SECONDS, LATE_SECONDS = 1.0, 10.0  # between two looks: at first, for runs may be short, and later
EARLY_LOOKS = 30
NESTED_SECONDS = 30.0  # for which ranks must have had ranks of their own before they are stopped
GRACE_SECONDS = 10.0  # from SIGTERM to SIGKILL
PROC = Path("/proc")
KERNEL = b"2"  # the parent of the kernel's own threads, of which nodes have thousands
ESTABLISHED = "01"  # include/net/tcp_states.h
SPAWNED = "--multiprocessing-fork"  # the last word of a process that Python's multiprocessing spawns
LOOPBACK = ("127.", "::1")

Address = Tuple[str, int]
Connection = Tuple[Address, Address]  # local, remote
Key = Tuple[int, int]  # of a rank: the number of its node, and its own


class Family(NamedTuple):
    """The variables by which starters of ranks tell these who they are, and where they meet."""

    rank: str
    local: str
    size: str
    meeting: Tuple[str, ...]


FAMILIES = (
    Family("RANK", "LOCAL_RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT")),
    Family("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    Family("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", ("PMI_FD", "PMI_PORT")),
    Family("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", ("HOROVOD_GLOO_RENDEZVOUS_PORT",)),
)


class Member(NamedTuple):
    """What a process was told about itself when it was started."""

    family: Family
    rank: int
    local: int
    size: int
    meeting: Tuple[str, ...]


class Nested(NamedTuple):
    """The ranks that one rank has started: their worlds' sizes, how many they are, their commands, and by what."""

    sizes: Tuple[int, ...]
    members: int
    commands: Tuple[str, ...]
    by: str


class Processes:
    """The processes of this machine as they were at one moment, by number. What cannot be read is empty."""

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self.children: Dict[int, List[int]] = {}
        self.parents: Dict[int, int] = {}
        for name in os.listdir(self._proc):
            if name.isdigit():
                fields = self._read(name, "stat").rpartition(b")")[2].split()
                if len(fields) > 1 and fields[0] not in b"ZX" and fields[1] != KERNEL:
                    self.parents[int(name)] = int(fields[1])
                    self.children.setdefault(int(fields[1]), []).append(int(name))

    def words(self, pid: int) -> List[str]:
        return _texts(self._read(str(pid), "cmdline"))

    def environment(self, pid: int) -> Dict[str, str]:
        """The variables with which its program was started: processes that are forked have their parent's."""
        return dict(text.partition("=")[::2] for text in _texts(self._read(str(pid), "environ")))

    def sockets(self, pid: int) -> Iterator[str]:
        """The inodes of its sockets."""
        directory = f"{self._proc}/{pid}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                with contextlib.suppress(OSError):
                    match = re.match(r"socket:\[(\d+)\]", os.readlink(f"{directory}/{name}"))
                    if match:
                        yield match.group(1)

    def below(self, pid: int) -> Iterator[int]:
        """A process and what it has started, children after their parents."""
        pending = [pid]
        while pending:
            pid = pending.pop()
            yield pid
            pending += self.children.get(pid, ())

    def connections(self) -> Dict[str, Connection]:
        """The established TCP connections of this network namespace, by inode (man 5 proc)."""
        by_inode = {}
        for name in ("tcp", "tcp6"):
            for line in self._read("net", name).decode("ascii", "replace").splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == ESTABLISHED:
                    by_inode[fields[9]] = (_address(fields[1]), _address(fields[2]))
        return by_inode

    def _read(self, *names: str) -> bytes:
        try:
            with open("/".join((self._proc, *names)), "rb", 0) as file:
                return file.read()
        except OSError:  # it has ended, or it is another user's
            return b""


def _texts(data: bytes) -> List[str]:
    return [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]


def _address(text: str) -> Address:
    """The kernel's hexadecimal address: words of the CPU, little-endian on all that images are made for."""
    digits, _, port = text.partition(":")
    words = struct.pack(f"<{len(digits) // 8}I", *(int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)))
    if len(words) == 4:
        return socket.inet_ntop(socket.AF_INET, words), int(port, 16)
    if words[:12] == b"\0" * 10 + b"\xff\xff":  # an IPv4 address
        return socket.inet_ntop(socket.AF_INET, words[12:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, words), int(port, 16)


class Names:
    """Host names and their addresses, each asked for until it is known."""

    def __init__(self) -> None:
        self._known: Dict[str, Set[str]] = {}

    def addresses(self, host: str) -> Set[str]:
        if host not in self._known:
            with contextlib.suppress(OSError, UnicodeError):
                self._known[host] = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
        return self._known.get(host, set())


def meeting_points(environment: Dict[str, str], names: Names) -> Set[Address]:
    """Where a process with these variables meets the others: at torch's rendezvous, or at the PMIx server of its node
    (tcp4://127.0.0.1:PORT in PMIX_SERVER_URI and the like), which knows only ranks of this world."""
    points = set()
    port = environment.get("MASTER_PORT", "")
    if port.isdigit():
        points |= {(address, int(port)) for address in names.addresses(environment.get("MASTER_ADDR", ""))}
    for name, value in environment.items():
        if name.startswith("PMIX_SERVER_URI"):
            match = re.search(r"tcp4?://([0-9.]+):(\d+)", value)
            if match:
                points.add((match.group(1), int(match.group(2))))
    return points


def members(environment: Dict[str, str]) -> Iterator[Member]:
    """What these variables say about a process that somebody has started as one of several ranks."""
    for family in FAMILIES:
        numbers = [environment.get(name, "") for name in family[:3]]
        if all(number.isdigit() for number in numbers) and int(numbers[2]) > 1:
            rank, local, size = map(int, numbers)
            yield Member(family, rank, local, size, tuple(environment.get(name, "") for name in family.meeting))


class Ranks:
    """The ranks of a run on this machine: on site local that is all nodes."""

    def __init__(self, run: str, launcher: str, world_size: int, hosts: List[str]) -> None:
        self._task, self._launcher, self._world_size = f"{run}/task.sh", launcher, world_size
        self.are_started_inside = launcher == "node"  # by the command, which says so
        self._names, here = Names(), _short(os.uname().nodename)
        self._hosts = [host for host in hosts if _short(host) not in (here, "localhost")]

    def find(self, processes: Processes) -> Dict[Key, List[int]]:
        """The processes of each rank, its first one before the others. Where the command starts the ranks, they are
        whatever it says: the first processes that have the number of one."""
        ranks: Dict[Key, List[int]] = {}
        for pid in [pid for pid in processes.parents if self._is_task(processes, pid)]:
            pending = [] if self._is_task(processes, processes.parents[pid]) else [pid]
            given = set(members(processes.environment(pid))) if self.are_started_inside else set()
            while pending:
                pid = pending.pop()
                key = None if self._is_task(processes, pid) else self._key(processes.environment(pid), given)
                if key is None:
                    pending += processes.children.get(pid, ())
                else:
                    ranks.setdefault(key, []).extend(processes.below(pid))
        return ranks

    def joined(self, processes: Processes, ranks: Dict[Key, List[int]]) -> Set[Key]:
        """The ranks that hold a connection to their meeting point, to another rank here, or to another host of the
        run."""
        connections, strays = processes.connections(), self._strays(processes, ranks)
        held = {
            key: {
                connections[inode]
                for pid in pids
                if pid not in strays
                for inode in processes.sockets(pid)
                if inode in connections
            }
            for key, pids in ranks.items()
        }
        owners = {connection: key for key, every in held.items() for connection in every}
        connected = set()
        for key, every in held.items():
            points = meeting_points(processes.environment(ranks[key][0]), self._names)
            for local, remote in every:
                peer = owners.get((remote, local), key)
                if points & {local, remote} or peer != key or self._is_other_host(remote[0]):
                    connected.add(key)
        return connected

    def _strays(self, processes: Processes, ranks: Dict[Key, List[int]]) -> Set[int]:
        """The processes of nested worlds of several ranks that meet in one place by chance: each deepspeed takes port
        29500, so ranks of one reach another's. They join nothing of the run's."""
        worlds: Dict[Tuple[Any, ...], List[int]] = {}
        below: Dict[Tuple[Any, ...], Set[Key]] = {}
        for key, pids in ranks.items():
            for world, by_local in self._worlds(processes, pids).items():
                worlds.setdefault(world, []).extend(by_local.values())
                below.setdefault(world, set()).add(key)
        colliding = [pid for world, pids in worlds.items() if len(below[world]) > 1 for pid in pids]
        return {one for pid in colliding for one in processes.below(pid)}

    def nested(self, processes: Processes, pids: List[int]) -> Optional[Nested]:
        """The ranks that a rank has started, if these are at least two and meet elsewhere than the rank does."""
        worlds = self._worlds(processes, pids)
        if not worlds:
            return None
        family = next(iter(worlds))[0]  # the same ranks may have variables of several families
        worlds = {key: by_local for key, by_local in worlds.items() if key[0] == family}
        every = [pid for by_local in worlds.values() for pid in by_local.values()]
        commands = sorted(" ".join(processes.words(pid)) for pid in every)
        starter = _program(processes.words(processes.parents.get(every[0], 0)))
        return Nested(tuple(key[1] for key in worlds), len(every), tuple(commands), starter)

    def _worlds(self, processes: Processes, pids: List[int]) -> Dict[Tuple[Any, ...], Dict[int, int]]:
        """The worlds that a rank has started: of each, known by family, size and meeting point, the processes by local
        rank.

        Only programs that were started with variables of their own have other ones than the rank: processes that are
        forked (workers of a data loader) have the rank's. What multiprocessing spawns is an engine's, never a rank.
        """
        given = processes.environment(pids[0])  # below mpirun without RANK, which rank.sh adds
        own = {member.family for member in members(given)}
        worlds: Dict[Tuple[Any, ...], Dict[int, int]] = {}
        inner: Set[int] = set()
        for pid in pids:
            if processes.parents.get(pid) in inner or SPAWNED in processes.words(pid):
                inner.add(pid)  # what a nested rank has started, and workers of multiprocessing
                continue
            for member in members(processes.environment(pid)):
                meeting = tuple(given.get(name, "") for name in member.family.meeting)
                if meeting != member.meeting if any(member.meeting) else member.family not in own:
                    worlds.setdefault((member.family, member.size, member.meeting), {})[member.local] = pid
                    inner.add(pid)
        # A part of a larger world, as of torchrun that meets the one of another rank, is none of its own.
        return {key: by_local for key, by_local in worlds.items() if len(by_local) >= key[1]}

    def _is_other_host(self, address: str) -> bool:
        """Whether an address is that of another host of the run."""
        if address.startswith(LOOPBACK):
            return False
        return any(address in self._names.addresses(host) for host in self._hosts)

    def _key(self, environment: Dict[str, str], given: Set[Member]) -> Optional[Key]:
        """`given` are what the scheduler has told the task, which is no rank."""
        node = environment.get("NODE_RANK", "") if self._launcher != "mpirun" else ""  # that has one task for all nodes
        for member in members(environment):
            if member not in given if self.are_started_inside else member.size == self._world_size:
                return int(node) if node.isdigit() else 0, member.rank
        return None

    def _is_task(self, processes: Processes, pid: int) -> bool:
        return self._task in processes.words(pid)


def _program(words: List[str]) -> str:
    """The name of a program for users: of the script or the module, if an interpreter runs it."""
    if "-m" in words[1:-1]:
        module = words[words.index("-m") + 1]
        return "torchrun" if module.startswith("torch.distributed.") else module.partition(".")[0]
    plain = [word for word in words[1:] if not word.startswith("-")]
    is_interpreted = bool(plain) and re.match(r"(python|bash$|sh$)", Path(words[0]).name)
    return Path(plain[0] if is_interpreted else words[0]).name if words else "?"


def _short(host: str) -> str:
    return host.partition(".")[0]


class Report:
    """The events of the nodes of a run: this node's are written, all are read."""

    def __init__(self, run: Path, node: int) -> None:
        self._directory, self._own = run / "nodes", run / "nodes" / f"{node}.jsonl"
        attempt = os.environ.get("CTRAIN_ATTEMPT")  # of a run that may have several
        self._attempt = {"attempt": int(attempt)} if attempt else {}

    def write(self, what: str, **more: Any) -> None:
        host = _short(os.uname().nodename)
        event = {"time": time.time(), "stage": "world", "node": host, "what": what, **self._attempt, **more}
        line = json.dumps(event)
        with contextlib.suppress(OSError), self._own.open("a", encoding="utf-8") as file:  # a full disk stops nothing
            file.write(line + "\n")

    def read(self) -> List[Dict[str, Any]]:
        """What the scans of all nodes have written in this attempt."""
        return [event for path in self._directory.glob("*.jsonl") for event in self._read(path)]

    def _read(self, path: Path) -> Iterator[Dict[str, Any]]:
        with contextlib.suppress(OSError):
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    is_own = isinstance(event, dict) and event.get("attempt") == self._attempt.get("attempt")
                    if is_own and event.get("stage") == "world":
                        yield {**event, "file": path.name}


def verdict(events: List[Dict[str, Any]], ranks_per_node: int) -> str:
    """Why the run must stop; "" as long as there is any doubt that it trains several models in the place of one."""
    nested = [event for event in events if event.get("what") == "nested" and event.get("lasting")]
    by_node = {event["file"]: event for event in nested}.values()  # the last one of each
    ranks = {rank for event in by_node for rank in event["lasting"]}
    commands = {command for event in by_node for command in event["commands"]}
    is_crowded = all(event["members"] > ranks_per_node for event in by_node)
    if any(event.get("what") == "joined" for event in events) or len(ranks) < 2 or len(commands) > 1 or not is_crowded:
        return ""
    sizes = [size for event in by_node for size in event["sizes"]]
    by = ", ".join(sorted({event["by"] for event in by_node}))
    worlds = f"{len(sizes)} worlds of {' or '.join(map(str, sorted(set(sizes))))}"
    each = f"each of {len(ranks)} ranks started ranks of its own"
    return f"{each} ({by}, {worlds}, same command): they would train {len(sizes)} models"


class Scan:
    """What has been seen of the ranks of one node so far."""

    def __init__(self, ranks: Ranks, report: Report, node: int) -> None:
        self._ranks, self._report, self._node = ranks, report, node
        self._joined: Set[Key] = set()
        self._since: Dict[Key, float] = {}  # when ranks of its own were first seen below a rank
        self._nested: Tuple[Set[Key], Set[Key]] = (set(), set())  # as reported: all, and those that have lasted
        self.looks = 0

    @property
    def may_stop(self) -> bool:
        """Whether ranks of this node have had ranks of their own for long, and none has joined anything."""
        return bool(self._nested[1]) and not self._joined

    def look(self, processes: Processes, now: float) -> int:
        """Look once, and report what is new; how many of the node's ranks have joined so far."""
        every = self._ranks.find(processes)
        own = {key for key in every if key[0] == self._node}
        is_up = bool(own) or self._ranks.are_started_inside
        if is_up and not self.looks:
            self._report.write("looked")
        self.looks += is_up
        missing = own - self._joined
        new = self._ranks.joined(processes, every) & missing if missing else set()
        if new:
            self._joined |= new
            sizes = {member.size for key in new for member in members(processes.environment(every[key][0]))}
            self._report.write("joined", ranks=sorted(rank for _, rank in new), of=max(sizes))
        if not self._joined and not self._ranks.are_started_inside:
            self._look_for_nested(processes, {key: every[key] for key in own}, now)
        return len(self._joined)

    def _look_for_nested(self, processes: Processes, ranks: Dict[Key, List[int]], now: float) -> None:
        ranks_below = {key: self._ranks.nested(processes, pids) for key, pids in ranks.items()}
        nested = {key: value for key, value in ranks_below.items() if value}
        self._since = {key: self._since.get(key, now) for key in nested}
        lasting = {key for key, since in self._since.items() if now - since >= NESTED_SECONDS}
        if set(nested) <= self._nested[0] and lasting <= self._nested[1]:
            return
        self._nested = set(nested), lasting
        self._report.write(
            "nested",
            ranks=sorted(rank for _, rank in nested),
            lasting=sorted(rank for _, rank in lasting),
            members=sum(value.members for value in nested.values()),
            sizes=[size for value in nested.values() for size in value.sizes],
            commands=sorted({hashlib.sha256(repr(value.commands).encode()).hexdigest() for value in nested.values()}),
            by=sorted({value.by for value in nested.values()})[0],
        )


def stop(task: int, proc: Path) -> None:
    """End what a task has started: with SIGTERM, which the task passes on; after a while with SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which the task would end this process, too
    with contextlib.suppress(ProcessLookupError):
        os.kill(task, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    script = Processes(proc).words(task)
    while True:
        processes = Processes(proc)
        started = [pid for pid in processes.below(task) if pid != os.getpid() and processes.words(pid) != script]
        if not started:
            return
        if time.monotonic() >= deadline:
            for pid in started:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def watch() -> int:
    run, launcher, node, nodes, ranks_per_node = sys.argv[1:6]
    os.closerange(3, 1 << 10)  # some starters wait for whoever has what they gave to the task
    task, world_size = os.getppid(), int(nodes) * int(ranks_per_node)
    expected = world_size if launcher == "mpirun" else int(ranks_per_node)
    report = Report(Path(run), int(node))
    scan = Scan(Ranks(run, launcher, world_size, sys.argv[6:]), report, int(node))
    next_look = time.monotonic()
    while os.getppid() == task:
        now = time.monotonic()
        if now >= next_look:
            next_look = now + (EARLY_SECONDS if scan.looks < EARLY_LOOKS else LATE_SECONDS)
            joined = scan.look(Processes(PROC), now)
            if joined >= expected and launcher != "node":  # whose command may start more
                return 0
            message = verdict(report.read(), int(ranks_per_node)) if scan.may_stop and node == "0" else ""
            if message:
                report.write("stopped", code=WRONG_WORLD, message=message)
                stop(task, PROC)
                return WRONG_WORLD
        time.sleep(EARLY_SECONDS)
    return 0


def main() -> int:
    try:
        return watch()
    except Exception as error:  # the run goes on without evidence, and its record says so
        Report(Path(sys.argv[1]), int(sys.argv[3])).write("failed", message=repr(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())

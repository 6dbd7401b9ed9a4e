"""Has the nodes of a job meet: each reaches all others, runs the same image, has living GPUs, and none is slow. Of one
node only the GPUs are checked.

Usage: nodes.py NODES BACKEND EXPECTED GPUS IMAGE, once on each node, in the image. EXPECTED is in GB/s (0: unknown),
GPUS the planned number per node; IMAGE identifies the image of this node. NODE_RANK numbers the nodes. Node 0 listens
at MASTER_ADDR, collects the reports and diagnoses. Only IPv4 and the standard library are used.

It stays in seconds at 1,000 nodes: each connects to all others, and measures its rate with log2(NODES) of them, in
rounds of fixed time. Of more nodes each connects to the next 1,000 in a ring, and hears of these alone. A slow node is
slow in all of its rounds; its partners are fast in others.
"""

import concurrent.futures
import contextlib
import json
import os
import queue
import resource
import socket
import socketserver
import statistics
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

from diagnosis import diagnose, edges, own_problems
from node_checks import GPU_SECONDS, gpu_problems, own_address

CONNECT_SECONDS = 2.0
MEETING_SECONDS = 9.0  # from the step's start, or three times as long as the first node took to start
NODES_PER_SECOND = 100  # that a scheduler starts, at least
SEND_SECONDS = 0.2
RECEIVE_SECONDS = 0.6  # by then a slow link has shown its rate
ROUND_SECONDS = 1.5
CONNECTIONS = 64  # at a time: file descriptors are limited
LOST = {"unreached": [(0, "its connection to the first node is lost")], "rates": []}
SLOWEST_START_SECONDS = 60.0  # that node 0 reckons with
MARGIN_SECONDS = 10.0  # by which the others wait for longer than node 0
NEIGHBOURS = 1000  # that a node connects to, at most
PORTS_BETWEEN = 1134  # MASTER_PORT is for torch, whose ranks may already wait there; as it, above the ephemeral ones
CHUNK = b"\0" * (1 << 18)

Peers = Dict[int, Dict[str, Any]]  # by their numbers: address, port and name


def report(what: str, message: str) -> None:
    """Why the preflight `failed`, or what it has `measured`: an event of this node; a failure goes to job.log, too."""
    if what == "failed":
        print(f"ctrain: preflight: {message}", flush=True)
    event = {"time": time.time(), "stage": "preflight", "node": node_name(), "what": what, "message": message}
    with Path(os.environ["CTRAIN_RUN_DIR"], "nodes", os.environ["NODE_RANK"] + ".jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def node_name() -> str:
    return socket.gethostname().partition(".")[0]


class Receiver(socketserver.ThreadingTCPServer):
    """Accepts connections of other nodes. Those that send are measured: for each round, the sender and its GB/s."""

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, address: str, nodes: int) -> None:
        queues = [queue.Queue() for _ in rounds(nodes)]  # type: List[queue.Queue[Tuple[int, float]]]
        self.measured = queues
        super().__init__((address, 0), _Measurement)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Measurement(socketserver.BaseRequestHandler):
    server: Receiver

    def handle(self) -> None:
        head = self.request.recv(8, socket.MSG_WAITALL)
        if len(head) < 8:
            return  # it only wanted to know whether it reaches this node
        begin, count, buffer = time.monotonic(), 0, bytearray(1 << 20)
        with contextlib.suppress(OSError):
            while time.monotonic() < begin + RECEIVE_SECONDS:
                self.request.settimeout(RECEIVE_SECONDS)
                size = self.request.recv_into(buffer)
                if not size:
                    break
                count += size
        number, sender = struct.unpack("!II", head)
        rate = count / (time.monotonic() - begin) / 1e9
        self.server.measured[number].put((sender, rate))


def rounds(nodes: int) -> List[int]:
    """The distance to the partner in each round: 1, 2, 4, ... of a ring; at least 4 rounds."""
    return [1 + (2**number - 1) % (nodes - 1) for number in range(max(4, (nodes - 1).bit_length()))]


def distances(nodes: int) -> List[int]:
    """Those in the ring at which a node connects to others: the next ones, and its partners."""
    return [*range(1, min(nodes - 1, NEIGHBOURS) + 1), *(far for far in rounds(nodes) if far > NEIGHBOURS)]


def measure(peers: Peers, rank: int, count: int, receiver: Receiver) -> List[Tuple[int, float]]:
    """The sender and its rate in each round; a rate of 0 if nothing came."""
    rates = []
    for number, distance in enumerate(rounds(count)):
        peer = peers[(rank + distance) % count]
        sending = threading.Thread(target=_send, args=(peer, struct.pack("!II", number, rank)), daemon=True)
        sending.start()
        try:
            rates.append(receiver.measured[number].get(timeout=ROUND_SECONDS))
        except queue.Empty:
            rates.append(((rank - distance) % count, 0.0))
        sending.join()
    return rates


def _send(peer: Dict[str, Any], head: bytes) -> None:
    where = (peer["address"], peer["port"])
    # What goes wrong shows in what the peer receives.
    with contextlib.suppress(OSError), socket.create_connection(where, timeout=CONNECT_SECONDS) as sock:
        end = time.monotonic() + SEND_SECONDS
        sock.settimeout(RECEIVE_SECONDS)
        sock.sendall(head)
        while time.monotonic() < end:
            sock.sendall(CHUNK)


def unreached(peers: Peers, rank: int, count: int) -> List[Tuple[int, str]]:
    """The nodes that this one does not reach, and why. It resolves the names of its partners only, which spares the
    name server."""
    partners = {(rank + distance) % count for distance in rounds(count)}

    def failure(other: int) -> str:
        node = peers[other]
        try:
            socket.create_connection((node["address"], node["port"]), timeout=CONNECT_SECONDS).close()
            if other in partners:
                socket.gethostbyname(node["name"])
        except OSError as error:
            return error.strerror or str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:  # each node begins with another
        return [(other, why) for other, why in zip(peers, pool.map(failure, peers)) if why]


class Line:
    """A connection that carries a JSON value per line."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._file = sock, sock.makefile("rw")

    def write(self, text: str) -> None:
        """Send a value, as JSON. Who is gone does not answer."""
        with contextlib.suppress(OSError):
            self._file.write(text + "\n")
            self._file.flush()

    def read(self, seconds: float) -> Any:
        """The next value; None if it does not come in time, or never."""
        self._sock.settimeout(max(0.01, seconds))
        try:
            return json.loads(self._file.readline() or "null")
        except (OSError, ValueError):
            return None


def lead(server: socket.socket, count: int, expected: float) -> None:
    """Collect the reports of all nodes, diagnose, and tell each whether all is well."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection per node: 1024 may be too few
    patience = _patience(count)
    deadline = time.monotonic() + patience
    lines: Dict[int, Line] = {}
    nodes: Dict[int, Dict[str, Any]] = {}
    reached = ""  # the address of this node to which others have connected
    with contextlib.suppress(OSError):  # the time is over
        while len(nodes) < count:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            sock = server.accept()[0]
            line = Line(sock)
            node = line.read(CONNECT_SECONDS)
            if isinstance(node, dict) and node.get("run") == os.environ["CTRAIN_RUN_DIR"]:  # else it is a stranger
                lines[node["rank"]], nodes[node["rank"]] = line, node
                reached = sock.getsockname()[0] if node["rank"] else reached
    roster = [{**node, "address": node["address"] or reached} for _, node in sorted(nodes.items())]
    missing = f"did not start, or not reach {os.environ['MASTER_ADDR']}, in {patience:.0f} s: its link or node is down"
    problems = [f"{name}: {missing}" for name in _missing(roster, count)] + own_problems(roster)
    for line, answer in zip(lines.values(), (["[]"] * len(lines) if problems else answers(roster, list(lines)))):
        line.write(answer)
    deadline = time.monotonic() + 3 * CONNECT_SECONDS + len(rounds(count)) * ROUND_SECONDS + GPU_SECONDS
    for rank, node in enumerate([] if problems else roster):
        node.update(lines[rank].read(deadline - time.monotonic()) or LOST)
    problems = problems or own_problems(roster) + diagnose(roster, expected)
    for problem in problems:
        report("failed", problem)
    if not problems:
        rate = statistics.median(rate for _, _, rate in edges(roster))
        report("measured", f"{count} nodes reach each other, by TCP at {rate:.2g} GB/s")
    for line in lines.values():
        line.write(json.dumps(not problems))


def answers(roster: List[Dict[str, Any]], ranks: List[int]) -> Iterator[str]:
    """What nodes learn: where the others are that they connect to, in the order of `distances`. All of 10,000 would
    be 31 GB in all."""
    ring = [json.dumps({key: node[key] for key in ("address", "port", "name")}) for node in roster] * 2
    steps = distances(len(roster))
    for rank in ranks:
        yield "[" + ",".join([ring[rank + step] for step in steps]) + "]"


def _patience(count: int) -> float:
    """The seconds for which node 0 waits for the others. The step began with the last event of job.sh."""
    begun = Path(os.environ["CTRAIN_RUN_DIR"], "events.jsonl").stat().st_mtime
    taken = min(SLOWEST_START_SECONDS, max(0.0, time.time() - begun))
    return max(MEETING_SECONDS - taken, 2 * taken) + count / NODES_PER_SECOND


def _longest(count: int) -> float:
    """The seconds for which the others wait for node 0, which waits for the last of them."""
    return 2 * SLOWEST_START_SECONDS + count / NODES_PER_SECOND + MARGIN_SECONDS


def _missing(roster: List[Dict[str, Any]], count: int) -> List[str]:
    """The names of the nodes that did not come, of those that the scheduler has allocated; else their number."""
    if len(roster) == count:
        return []  # whatever they call themselves: a scheduler may know them by other names
    came = {node["name"] for node in roster}
    hosts = Path(os.environ["CTRAIN_RUN_DIR"], "hosts")  # not a variable: 10,000 names are longer than one may be
    names = hosts.read_text().split() if hosts.exists() else []
    names = [name for name in names if name.partition(".")[0] not in came]
    missing = count - len(roster)
    return names if len(names) == missing else [f"{missing} of {count} nodes"]


def main() -> int:
    count, backend, expected, gpus, image = sys.argv[1:]
    if count == "1":
        problems = gpu_problems(int(gpus))
        for problem in problems:
            report("failed", f"{node_name()}: {problem}")
        return 1 if problems else 0
    checking = concurrent.futures.ThreadPoolExecutor().submit(gpu_problems, int(gpus))  # it may take seconds
    rank, port = int(os.environ["NODE_RANK"]), 61000 + (int(os.environ["MASTER_PORT"]) - 61000 + PORTS_BETWEEN) % 4536
    try:
        if rank == 0:
            server = _listen(port)
            threading.Thread(target=lead, args=(server, int(count), float(expected))).start()
        longest = _longest(int(count))
        sock = _meet((os.environ["MASTER_ADDR"], port), longest)
    except OSError as error:
        report("failed", f"{node_name()}: cannot meet at {os.environ['MASTER_ADDR']}:{port}: {error}")
        return 1
    problems, address, via, port = [], "", "", 0
    try:
        address, via = own_address(backend, sock.getsockname()[0])
        receiver = Receiver(address, int(count))
        port = receiver.server_address[1]
    except OSError as error:
        problems.append(str(error))
    node = {"rank": rank, "name": node_name(), "image": image, "address": address, "via": via, "port": port}
    line = Line(sock)
    line.write(json.dumps({**node, "problems": problems, "run": os.environ["CTRAIN_RUN_DIR"]}))
    others = line.read(longest)
    if others:
        peers = {(rank + step) % int(count): peer for step, peer in zip(distances(int(count)), others)}
        seen = {
            "unreached": unreached(peers, rank, int(count)),
            "rates": measure(peers, rank, int(count), receiver),
        }
        line.write(json.dumps({**seen, "problems": checking.result()}))
    return 0 if line.read(longest) else 1


def _listen(port: int) -> socket.socket:
    """As socket.create_server does it, from Python 3.8 on. Raises OSError."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", port))
    server.listen(1024)
    return server


def _meet(where: Tuple[str, int], seconds: float) -> socket.socket:
    """A connection to node 0, which may start later; it does not wait so long for this one. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(where, timeout=CONNECT_SECONDS)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())

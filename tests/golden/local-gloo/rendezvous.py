"""Runs a program, and while it lives the server at which Horovod's ranks find each other without MPI.

Usage: rendezvous.py PORT NODES RANKS_PER_NODE PROGRAM...; exit code 72 without a server, else the program's. The server
is Horovod's own, of the image, started as horovodrun --gloo does (horovod/runner/gloo_run.py).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

NO_SERVER = 72  # as SchedulerError in errors.py
PR_SET_PDEATHSIG = 1  # prctl(2): a signal when the parent ends
CONNECTIONS = 4096  # that may wait; 5 by default, too few for ranks that start together


def listen(port: int, nodes: int, ranks_per_node: int) -> Any:
    """The server, listening. Raises ImportError without Horovod, OSError if the port is taken."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    RendezvousHTTPServer.request_queue_size = CONNECTIONS
    server = RendezvousHTTPServer(("", port), RendezvousHandler, 0)
    hosts = parse_hosts(",".join(f"node{node}:{ranks_per_node}" for node in range(nodes)))
    server.init(get_host_assignments(hosts, nodes * ranks_per_node))
    return server


def main() -> int:
    port, nodes, ranks_per_node = (int(word) for word in sys.argv[1:4])
    try:
        server = listen(port, nodes, ranks_per_node)
    except ImportError as error:
        print(f"ctrain: launcher gloo needs Horovod in the image: {error}", flush=True)
        return NO_SERVER
    except OSError as error:
        print(f"ctrain: cannot listen on port {port} for Horovod's ranks: {error.strerror}", flush=True)
        return NO_SERVER
    program = os.getpid()
    if os.fork():
        os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606  # the program is what the user runs
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == program:  # it has not ended before prctl
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

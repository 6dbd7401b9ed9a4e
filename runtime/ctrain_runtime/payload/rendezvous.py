"""Runs a program, and while it lives the server at which Horovod's ranks find each other without MPI.

Usage: rendezvous.py PORT NODES RANKS_PER_NODE PROGRAM...; exit code 72 without a server, else the program's. The server
is Horovod's own, of the image, as horovodrun --gloo starts it (horovod/runner/gloo_run.py). The program need not wait
while that is imported: connections are accepted from the start.
"""

import os
import socket
import sys
from importlib.machinery import PathFinder  # importlib.util imports twice as much as all of this

NO_SERVER = 72  # as SchedulerError in errors.py
PR_SET_PDEATHSIG = 1  # prctl(2): a signal when the parent ends
CONNECTIONS = 4096  # that may wait: ranks start together


def has_horovod() -> bool:
    """Whether the image has the server; its packages are not imported."""
    horovod = PathFinder.find_spec("horovod")
    places = horovod.submodule_search_locations if horovod else None
    # The program waits for this: pathlib would be one more module to read from the image.
    return any(os.path.isfile(f"{place}/runner/http/http_server.py") for place in places or ())  # noqa: PTH113


def serve(listening: socket.socket, nodes: int, ranks_per_node: int) -> None:
    """Serve on a socket, for ever. Raises ImportError if Horovod's packages are broken."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer(("", 0), RendezvousHandler, 0)
    server.server_close()
    server.socket = listening
    hosts = parse_hosts(",".join(f"node{node}:{ranks_per_node}" for node in range(nodes)))
    server.init(get_host_assignments(hosts, nodes * ranks_per_node))
    server.serve_forever()


def main() -> int:
    port, nodes, ranks_per_node = (int(word) for word in sys.argv[1:4])
    if not has_horovod():
        print("ctrain: launcher gloo needs Horovod in the image", flush=True)
        return NO_SERVER
    try:
        listening = socket.socket()  # create_server came with Python 3.8
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", port))
        listening.listen(CONNECTIONS)
    except OSError as error:
        print(f"ctrain: cannot listen on port {port} for Horovod's ranks: {os.strerror(error.errno or 0)}", flush=True)
        return NO_SERVER
    program = os.getpid()
    if os.fork():
        os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606  # the program is what the user runs
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if os.getppid() == program:  # it has not ended before prctl
            serve(listening, nodes, ranks_per_node)
    except ImportError as error:
        print(f"ctrain: Horovod's server cannot start, so its ranks do not meet: {error}", flush=True)
    return NO_SERVER


if __name__ == "__main__":
    sys.exit(main())

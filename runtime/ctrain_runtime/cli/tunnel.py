"""How a user reaches a server on a node, or on this machine, from a browser elsewhere."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Optional

from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import UsageError

PORTS = range(20000, 32000)  # below those of outgoing connections (ip(7), ip_local_port_range)


def line(port: str, host: str, destination: str) -> str:
    """The command that makes a port of a host reachable from the user's own machine."""
    return f"tunnel    ssh -N -L {port}:{host}:{port} {destination}    (on your own machine)"


def ssh_destination(*, is_local: bool) -> str:
    """USER@HOST by which the user reaches this machine; "" if the user needs no tunnel to a server on it."""
    connection = os.environ.get("SSH_CONNECTION", "").split()  # client, its port, server, its port (man ssh)
    if is_local and not connection:
        return ""
    host = connection[2] if len(connection) == 4 else socket.gethostname()
    return f"{user_name(os.getuid())}@{host}"


def choose_port(wanted: Optional[int]) -> int:
    """The port of --port, else a random one. Raises UsageError if it is none."""
    port = secrets.choice(PORTS) if wanted is None else wanted
    if not 0 < port < 1 << 16:
        raise UsageError(f"--port must be between 1 and 65535, not {port}")
    return port

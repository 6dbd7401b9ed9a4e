"""Start JupyterLab in an image on a compute node, with the environment, mounts, home and GPUs of a run.

  ctrain jupyter pytorch --gpus-per-node 1            # on a node of the cluster
  ctrain jupyter pytorch --here                       # on this machine
  ctrain jupyter pytorch -- --ServerApp.root_dir=..    # further options of the server

Prints the URL, and the ssh command that makes it reachable from your own machine. It is a run: Ctrl-C ends it, and
after a lost terminal ctrain attach shows the lines again.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import sys
from dataclasses import replace

from ctrain_runtime import schedulers
from ctrain_runtime.base.text import user_name
from ctrain_runtime.cli import run_options, run_view
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.run import follow
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import Options
from ctrain_runtime.run.interrupts import Interrupts
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.submit import submit

TOKEN = "JUPYTER_TOKEN"  # noqa: S105  # a variable that the server reads: other users' ps does not show it
PORTS = range(20000, 32000)  # below those of outgoing connections (ip(7), ip_local_port_range)
# Runs on the node, with the user's ssh destination as $1. The server takes the next free port if its own is in use, and
# writes it to a file that is named by its process id (jupyter_server, serverapp.py). MASTER_ADDR is the node's name, or
# 127.0.0.1 on this machine.
SERVER = r"""destination=$1; shift
program=$(command -v jupyter-lab || command -v jupyter-notebook) || {
  echo "ctrain: JupyterLab not found in the image. Add it in a user layer: echo jupyterlab >requirements.txt;" \
    "ctrain layer build requirements.txt --on IMAGE -o lab.sqsh; ctrain jupyter IMAGE --layer lab.sqsh" >&2
  exit 127
}
export JUPYTER_RUNTIME_DIR="$HOME/jupyter"
(
  until port=$(sed -n 's/^ *"port": *\([0-9]*\).*/\1/p' "$JUPYTER_RUNTIME_DIR/jpserver-$$.json") && [ "$port" ]; do
    kill -0 $$ || exit
    sleep 0.2
  done 2>/dev/null
  [ -z "$destination" ] || echo "tunnel    ssh -N -L $port:$MASTER_ADDR:$port $destination    (on your own machine)"
  echo "notebook  http://127.0.0.1:$port/?token=$JUPYTER_TOKEN"
) &
exec "$program" --no-browser --allow-root --log-level=WARN --ip="$MASTER_ADDR" "$@"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, metavar="PORT", help="first port to try on the node (default: random)")
    run_options.add_single_rank(parser)


def execute(args: argparse.Namespace) -> int:
    request = run_options.make_request(args)
    port = secrets.choice(PORTS) if args.port is None else args.port
    if not 0 < port < 1 << 16:
        raise UsageError(f"--port must be between 1 and 65535, not {port}")
    destination = _ssh_destination(is_local=not schedulers.get(request.site.site.scheduler).programs)
    command = ("/bin/sh", "-c", SERVER, "jupyter", destination, f"--port={port}", *args.rest)
    options = _with_token(request.options)
    prepared = prepare(replace(request, command=command, job_name="jupyter", dry_run=args.dry_run, options=options))
    if args.dry_run:
        print_line(run_view.describe(prepared))
        return 0
    terminal = Terminal(sys.stdout)
    with Interrupts() as interrupts:
        terminal.show(run_view.summary(prepared, request.site.reason))
        return follow(submit(prepared.launch), terminal, interrupts, as_json=False)


def _with_token(options: Options) -> Options:
    """The options with a new token, which makes the run directory private. Raises UsageError if the user sets one."""
    if any(text.partition("=")[0] == TOKEN for text in options.env):
        raise UsageError(f"--env: {TOKEN} is made by ctrain", "Remove it")
    return replace(options, env=(*options.env, f"{TOKEN}={secrets.token_hex(24)}"))


def _ssh_destination(*, is_local: bool) -> str:
    """USER@HOST by which the user reaches this machine; "" if the user needs no tunnel to a server on it."""
    connection = os.environ.get("SSH_CONNECTION", "").split()  # client, its port, server, its port (man ssh)
    if is_local and not connection:
        return ""
    host = connection[2] if len(connection) == 4 else socket.gethostname()
    return f"{user_name(os.getuid())}@{host}"

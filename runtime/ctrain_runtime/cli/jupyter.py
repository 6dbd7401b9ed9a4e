"""Start JupyterLab in an image on a compute node, with the environment, mounts, home and GPUs of a run.

  ctrain jupyter pytorch --gpus-per-node 1            # on a node of the cluster
  ctrain jupyter pytorch --here                       # on this machine
  ctrain jupyter pytorch -- --ServerApp.root_dir=..    # further options of the server

Prints the URL, and the ssh command that makes it reachable from your own machine. It is a run: Ctrl-C ends it, and
after a lost terminal ctrain attach shows the lines again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from dataclasses import replace

from ctrain_runtime import schedulers
from ctrain_runtime.cli import follow, run_options, run_view, tunnel
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.terminal import Terminal
from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.options import Options
from ctrain_runtime.run.prepare import prepare

TOKEN = "JUPYTER_TOKEN"  # noqa: S105  # a variable that the server reads: other users' ps does not show it
# Runs on the node, with the tunnel's line as $1: {port} and {node} stand for what is known only there. The server takes
# the next free port if its own is in use, and writes it to a file that is named by its process id (jupyter_server,
# serverapp.py). MASTER_ADDR is the node's name, or 127.0.0.1 on this machine.
SERVER = r"""tunnel=$1; shift
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
  [ -z "$tunnel" ] || printf '%s\n' "$tunnel" | sed "s/{port}/$port/g; s/{node}/$MASTER_ADDR/"
  echo "notebook  http://127.0.0.1:$port/?token=$JUPYTER_TOKEN"
) &
exec "$program" --no-browser --allow-root --log-level=WARN --ip="$MASTER_ADDR" "$@"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, metavar="PORT", help="first port to try on the node (default: random)")
    run_options.add_single_rank(parser)


def execute(args: argparse.Namespace) -> int:
    request = run_options.request_of(args)
    port = tunnel.choose_port(args.port)
    destination = tunnel.ssh_destination(is_local=not schedulers.get(request.site.site.scheduler).programs)
    line = tunnel.line("{port}", "{node}", destination) if destination else ""
    command = ("/bin/sh", "-c", SERVER, "jupyter", line, f"--port={port}", *args.rest)
    options = _with_token(replace(request.options, command=command))
    prepared = prepare(replace(request, job_name="jupyter", options=options))
    if args.dry_run:
        print_line(run_view.describe(prepared))
        return 0
    return follow.start(prepared, request.site.reason, Terminal(sys.stdout))


def _with_token(options: Options) -> Options:
    """The options with a new token, which makes the run directory private. Raises UsageError if the user sets one."""
    if TOKEN in options.env:
        raise UsageError(f"--env: {TOKEN} is made by ctrain", "Remove it")
    return replace(options, env={**options.env, TOKEN: secrets.token_hex(24)})

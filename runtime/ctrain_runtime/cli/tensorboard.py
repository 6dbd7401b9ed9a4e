"""Show the curves of runs in TensorBoard on this machine, until Ctrl-C.

  ctrain tensorboard last
  ctrain tensorboard one two --port 6006

Prints the URL and, over ssh, the command that makes it reachable from your own machine. TensorBoard must be installed
here; it shows what the runs had measured when it was started. It has no password: whoever is logged in to this machine
can open it. See: ctrain help report
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from ctrain_runtime.base import command
from ctrain_runtime.cli import tunnel
from ctrain_runtime.cli.export import TENSORBOARD, export_runs
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.report import add_runs_argument
from ctrain_runtime.cli.run_options import add_on
from ctrain_runtime.errors import CtrainError

HOST = "127.0.0.1"
IN_AN_IMAGE = (
    "Install it (pip install tensorboard), or use that of an image: ctrain export RUN --to tensorboard DIR; "
    "ctrain shell IMAGE --here -- tensorboard --logdir DIR"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs_argument(parser)
    add_on(parser, dest="login", default="this machine")
    parser.add_argument("--port", type=int, metavar="PORT", help="port of the server (default: random)")


def execute(args: argparse.Namespace) -> int:
    port = tunnel.choose_port(args.port)
    program = command.which(TENSORBOARD)
    if not program:
        raise CtrainError("tensorboard not found on PATH", IN_AN_IMAGE)
    with tempfile.TemporaryDirectory(prefix="ctrain-tensorboard-") as folder:
        events, log = Path(folder) / "events", Path(folder) / "log"
        export_runs(args, TENSORBOARD, str(events))
        if destination := tunnel.ssh_destination(is_local=True):
            print_line(tunnel.line(str(port), HOST, destination))
        print_line(f"curves    http://{HOST}:{port}/    (Ctrl-C ends it)")
        code = command.run_logged([program, "--logdir", str(events), "--host", HOST, "--port", str(port)], log)
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if code:
        raise CtrainError(f"tensorboard ended with exit code {code}: {(lines or ['no output'])[-1]}")
    return 0

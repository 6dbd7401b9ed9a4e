"""Open a shell in an image on a compute node, with the environment, mounts, home and GPUs of a run.

  ctrain shell pytorch --gpus-per-node 1              # a shell on a node of the cluster, as rank 0 of 1
  ctrain shell pytorch --here                         # the same on this machine
  ctrain shell pytorch -- python -m pdb train.py      # any program that needs a terminal

Inside an allocation it starts at once. It ends with the terminal, and ctrain runs does not list it. Exits with the
shell's code.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from ctrain_runtime.cli import run_options, run_view
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.errors import UsageError
from ctrain_runtime.run.prepare import prepare
from ctrain_runtime.run.shell import open_shell

# As `apptainer shell`: without the start-up files of the image, which the program of a run does not read either.
# PROMPT_COMMAND: by it, the engine sets a prompt of its own.
SHELL = (
    *("/bin/sh", "-c"),
    r"""command -v bash >/dev/null || exec sh -i; unset PROMPT_COMMAND; PS1='[ctrain \h \W]\$ ' exec bash --norc -i""",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    run_options.add_single_rank(parser)


def execute(args: argparse.Namespace) -> int:
    if not args.dry_run and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "ctrain shell needs a terminal", "Run a program without one: ctrain run --image IMAGE -- PROGRAM"
        )
    request = run_options.request_of(args)
    options = replace(request.options, command=request.options.command or SHELL)
    prepared = prepare(replace(request, options=options, job_name="shell", interactive=True))
    if args.dry_run:
        print_line(run_view.describe(prepared))
        return 0
    print_line(run_view.summary(prepared, request.site.reason))
    code, is_gone = open_shell(prepared.launch)
    if not is_gone:
        print_line(f"kept what was written to {prepared.launch.plan.run_directory}")
    return code

"""Tell in which settings, packages and results two or more runs differ; the page with their curves: ctrain report.

  ctrain compare lr-0.1 lr-0.03
  ctrain compare one-node two-nodes four-nodes    # where only the size differs: with the efficiency of scaling

RUN is a run's name, directory or job, `last`, or a sweep; it may still be running. See: ctrain help report
"""

from __future__ import annotations

import argparse

from ctrain_runtime.cli.output import print_line
from ctrain_runtime.cli.report import add_on_if_asked, add_runs_argument, subjects_of
from ctrain_runtime.errors import UsageError
from ctrain_runtime.report import text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs_argument(parser)
    add_on_if_asked(parser)


def execute(args: argparse.Namespace) -> int:
    subjects = subjects_of(args)
    if len(subjects) < 2:
        raise UsageError("one run alone cannot be compared", "Name at least two: ctrain compare RUN RUN")
    print_line(text.compare(subjects))
    return 0

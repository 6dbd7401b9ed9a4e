"""Explains a topic: exit-codes."""

from __future__ import annotations

import argparse

from ctrain_runtime.errors import exit_codes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", choices=["exit-codes"])


def execute(args: argparse.Namespace) -> int:
    if args.topic == "exit-codes":
        print("A program's own exit code passes through. ctrain's are:")
        for code, meaning in exit_codes():
            print(f"  {code:>3}  {meaning}")
    return 0

"""Explain a topic: exit-codes."""

from __future__ import annotations

import argparse

from ctrain_runtime.errors import exit_codes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", choices=["exit-codes"])


def execute(args: argparse.Namespace) -> int:
    if args.topic == "exit-codes":
        print("The exit code is the program's own, or one of ctrain's:")
        for code, meaning in exit_codes():
            print(f"  {code:>3}  {meaning}")
    return 0

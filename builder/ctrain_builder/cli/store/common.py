"""What the files of actions share: how an action is declared, and how its result is printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Protocol

from ctrain_runtime.store import Store

Run = Callable[[argparse.Namespace, Store], int]


class AddAction(Protocol):
    """Declares an action that `run` carries out on the open store; returns its parser."""

    def __call__(self, name: str, text: str, run: Run) -> argparse.ArgumentParser: ...


def show(args: argparse.Namespace, data: object, text: str) -> int:
    """Print the result of an action as JSON or as text; the exit code of success."""
    print(json.dumps(data, indent=2) if args.json else text)
    return 0

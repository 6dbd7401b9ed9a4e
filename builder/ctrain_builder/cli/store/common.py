"""What the files of actions share: how an action is declared, and how its result is printed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Optional, Protocol

from ctrain_builder.store.lifecycle import GRACE_DAYS
from ctrain_runtime.base.paths import store_path
from ctrain_runtime.errors import UsageError
from ctrain_runtime.store.store import Store

GOES_LATER = f"its file goes {GRACE_DAYS:.0f} days after, with ctrain store gc"
Run = Callable[[argparse.Namespace, Store], int]


class AddAction(Protocol):
    """Declares an action that `run` carries out on the open store; returns its parser."""

    def __call__(self, name: str, text: str, run: Run) -> argparse.ArgumentParser: ...


def store_root(option: Optional[str]) -> Path:
    """The store of --store or CTRAIN_STORE. Raises UsageError."""
    root = option or os.environ.get("CTRAIN_STORE")
    if not root:
        raise UsageError("no store named", f"Pass --store {_for_runs() or 'DIR'} or set CTRAIN_STORE")
    return store_path(root)


def _for_runs() -> str:
    """The store that runs look in first; "" if there is none. What changes a store is never told it by a site file."""
    from ctrain_runtime.site.select import select_site  # only here: slow to import

    return next(iter(select_site().store_dirs()), "")


def show(args: argparse.Namespace, data: object, text: str) -> int:
    """Print the result of an action as JSON or as text; the exit code of success."""
    print(json.dumps(data, indent=2) if args.json else text)
    return 0


def broken_channel(name: str, channel: str) -> str:
    """What follows for a channel whose version is no longer published."""
    repair = f"ctrain store rollback {name} {channel}, or ctrain store promote {name} VERSION {channel}"
    return f"{name}:{channel} is an error for users until it points to another version: {repair}"

"""Commands of the policy that run after publish, promote and withdraw. A change stands whatever they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ctrain_builder.store import log
from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.store import policy
from ctrain_runtime.store.policy import PROMOTE, PUBLISH, WITHDRAW
from ctrain_runtime.store.store import is_gone

_EVENT = "CTRAIN_EVENT"
_LONGEST = 300  # seconds
_PUBLISHED = (log.PUBLISH, log.ADOPT, log.SYNC)


def run(root: Path, changes: Iterable[log.Entry], say: Callable[[str], None]) -> list[tuple[log.Entry, str]]:
    """Run the hooks of changes that were made, and tell `say` which failed; these, for the log. The store's lock is not
    held: a hook may use the store. What it changes there starts no hook."""
    due = [(kind, change) for change in changes for kind in _kinds(change)]
    if not due or is_gone(root / policy.FILE) or _EVENT in os.environ:
        return []
    try:
        argvs = policy.load(root).hooks
        if any(kind in argvs for kind, _ in due):
            policy.require_own(root)
    except CtrainError as error:
        say(f"ctrain: hooks are not run: {error}")
        return [(due[0][1], error.message)]
    failed = []
    for kind, change in due:
        if kind in argvs and (problem := _failure(root, kind, argvs[kind], change)):
            what = f"hook {kind} of {root / policy.FILE} failed: {problem}"
            say(f"ctrain: {what}; {change.name} {change.version} stays as it is")
            failed.append((change, f"{kind}: {problem}"))
    return failed


def _kinds(change: log.Entry) -> Iterator[str]:
    if change.action == log.WITHDRAW:
        yield WITHDRAW
    elif change.channel and change.action in log.MOVES:
        yield PROMOTE
    elif change.action in _PUBLISHED:
        yield PUBLISH


def _failure(root: Path, kind: str, argv: tuple[str, ...], change: log.Entry) -> str:
    """Why a hook failed; "" if it did not."""
    about = {
        _EVENT: kind,
        "CTRAIN_STORE": str(root.absolute()),
        "CTRAIN_IMAGE": f"{change.name}:{change.version}",
        "CTRAIN_CHANNEL": change.channel,
        "CTRAIN_BEFORE": change.before,
        "CTRAIN_WHY": change.why,
    }
    try:
        done = command.run(argv, env={**os.environ, **about}, timeout=_LONGEST, check=False)
    except CtrainError as error:
        return error.message
    return f"{argv[0]} ended with exit code {done.code}: {done.last_error_line()}".rstrip(": ") if done.code else ""

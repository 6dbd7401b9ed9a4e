"""The audit log of a store: STORE/ctrain-store.log, one JSON object a line, appended before each change is made."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ctrain_builder.files.manifest_writer import utc_now
from ctrain_runtime.base import config
from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.store import RETIRED, STORE_LOG, is_gone, list_directory

PUBLISH, ADOPT, SYNC, PROMOTE, ROLLBACK = "publish", "adopt", "sync", "promote", "rollback"
CHANNEL_RM, MOVES = "channel rm", (SYNC, PROMOTE, ROLLBACK)
RETIRE, WITHDRAW, RESTORE, REMOVE, QUARANTINE = "retire", "withdraw", "restore", "remove", "quarantine"
SIGN, REDISTRIBUTE = "sign", "redistribute"
DEPRECATE, UNDEPRECATE = "deprecate", "no longer deprecate"
HOOK_FAILED = "hook failed"
NOTES = (HOOK_FAILED, REDISTRIBUTE, DEPRECATE, UNDEPRECATE)  # which change no state


@dataclass(frozen=True)
class Entry:
    """One change, or the attempt at one. Of a channel, `before` is the version that it pointed to until then."""

    when: str
    who: str
    host: str
    action: str
    name: str
    version: str = ""
    channel: str = ""
    before: str = ""
    digest: str = ""
    why: str = ""


def entry(action: str, name: str, version: str, **more: str) -> Entry:
    """A change that is made now, by this user: not by whom the environment names."""
    return Entry(utc_now(), user_name(os.geteuid()), socket.gethostname(), action, name, version, **more)


def append(root: Path, new: Entry, mode: int, group: int) -> None:
    """Add a line, durably. A line that a crash has cut off is ended first."""
    path = root / STORE_LOG
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
    line = json.dumps({key: value for key, value in asdict(new).items() if value}) + "\n"
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid():
            os.fchown(descriptor, -1, group)  # whatever the writer's own group and umask
            os.fchmod(descriptor, mode)
        size = status.st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = f"\n{line}"
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_lost(root: Path) -> bool:
    """Whether a store that has or had versions has no log: each change has written one."""
    manifests = (path for place in (root, root / RETIRED) for path in list_directory(place, "*_*.json"))
    return is_gone(root / STORE_LOG) and any(manifests)


def read(root: Path) -> Iterator[Entry]:
    """The entries, oldest first; lines that crashes have cut off are left out. Those of a newer ctrain count: they tell
    what a channel pointed to."""
    try:
        text = (root / STORE_LOG).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            yield config.load_known(Entry, json.loads(line), STORE_LOG)
        except (ValueError, AttributeError, ConfigError):
            continue

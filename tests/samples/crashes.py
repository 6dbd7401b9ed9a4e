"""Stops a command that writes to a store before its n-th change of the disk, as if the machine had stopped."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctrain_builder.files import atomic

# What changes the disk, as far as a crash before it could matter.
STEPS = (
    *((os, "open"), (os, "fsync"), (os, "fchmod"), (atomic, "create_text"), (atomic, "sync_directory")),
    *((Path, "replace"), (Path, "symlink_to"), (Path, "unlink")),
)


class Crash(BaseException):
    """The machine stops here."""


def run_until(number: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Act, but crash before change `number`; True if it came to its end."""
    left, real_open = itertools.count(number, -1), os.open

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: Any, **options: object) -> object:
            is_read = function is real_open and args[1] & os.O_ACCMODE == os.O_RDONLY
            if not is_read and next(left) <= 0:
                raise Crash
            return function(*args, **options)

        return call

    with monkeypatch.context() as patched, contextlib.suppress(Crash):
        for owner, name in STEPS:
            patched.setattr(owner, name, counted(getattr(owner, name)))
        act()
        return True
    return False

"""The key that signs, as the command line names it, and its passphrase."""

from __future__ import annotations

import getpass
import os
import sys

from ctrain_builder.store.sign import Signer, may_need_passphrase
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import UsageError

PASSPHRASE = "CTRAIN_PASSPHRASE"  # noqa: S105  # the variable's name


def make_signer(key: str) -> Signer:
    """A signer whose passphrase, if it needs one, is that of the environment, as CI has it, or else asked for."""
    return Signer(find_engine(), key, _passphrase(key))


def _passphrase(key: str) -> str:
    if PASSPHRASE in os.environ or not may_need_passphrase(key) or not sys.stdin.isatty():
        return os.environ.get(PASSPHRASE, "")
    try:
        return getpass.getpass(f"passphrase of {key} (empty for none): ")
    except EOFError as error:
        raise UsageError(f"no passphrase given for key {key}", f"Set {PASSPHRASE}") from error

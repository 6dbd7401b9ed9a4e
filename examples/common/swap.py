"""What DeepSpeed needs to move parts of a training out of memory: operators, and a directory on the node's own disk."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Optional

from example import InputError


def prepare_offload(to: str) -> Optional[str]:
    """The directory for `offload=nvme`; None for `offload=cpu`. Ends where either cannot work."""
    require_operators(to)
    return swap_directory() if to == "nvme" else None


def require_operators(offload: str) -> None:
    """End where the image lacks an operator that `offload` needs: DeepSpeed would compile it for minutes, if it can."""
    from deepspeed.git_version_info import installed_ops

    for name in ("cpu_adam", *(["async_io"] if offload == "nvme" else [])):
        if not installed_ops.get(name):
            lack = f"operator {name} of DeepSpeed, which this image lacks"
            raise InputError(
                f"offload={offload} needs the {lack}; run it in an image with layer deepspeed-ops, or set offload=none"
            )


def swap_directory() -> str:
    """Below TMPDIR if it is set, else HOME, which ctrain puts on the node's disk and removes, after a kill as well."""
    ours = os.environ["HOME"] if "CTRAIN_RUN_DIR" in os.environ else tempfile.gettempdir()
    place = os.environ.get("TMPDIR", ours)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as probe:
            os.close(os.open(probe.name, os.O_WRONLY | os.O_DIRECT))  # as DeepSpeed opens its files
        directory = tempfile.mkdtemp(prefix="swap-", dir=place)
    except OSError as error:
        reason = f"{place} on {os.uname().nodename}: {error.strerror}"
        raise InputError(
            f"offload=nvme cannot use {reason}; set TMPDIR to a directory on each node's own disk"
        ) from None
    atexit.register(shutil.rmtree, directory)
    return directory

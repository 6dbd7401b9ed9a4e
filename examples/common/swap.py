"""A directory on the node's own disk for what DeepSpeed moves out of memory."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from example import InputError


def swap_directory() -> str:
    """Below TMPDIR if it is set, else HOME, which ctrain puts on the node's disk and removes, after a kill as well."""
    from deepspeed.git_version_info import installed_ops

    if not installed_ops.get("async_io"):  # DeepSpeed would compile it for minutes, if it can
        lack = "operator async_io of DeepSpeed, which this image lacks"
        raise InputError(f"offload=nvme needs the {lack}; build the image anew, or set offload=cpu")
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

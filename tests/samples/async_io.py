"""Runs in the image: DeepSpeed's operator async_io writes and reads a file, and then more than it may."""

from __future__ import annotations

import os
import resource
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder  # type: ignore[import-not-found]  # it is in the image

resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))  # as a user who may lock no memory
SIZE = 3 << 20  # several blocks of 1 MiB at once
handle = AsyncIOBuilder().load().aio_handle(1 << 20, 8, False, True, 1)
with tempfile.TemporaryDirectory() as directory:
    sent = torch.arange(SIZE // 4, dtype=torch.int32)
    assert handle.sync_pwrite(sent, f"{directory}/file") == 1
    received = torch.zeros_like(sent)
    assert handle.sync_pread(received, f"{directory}/file") == 1
    assert torch.equal(sent, received)
    print("written and read", flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, -1))  # the first block
    handle.sync_pwrite(sent, f"{directory}/full")
    print("not noticed", flush=True)

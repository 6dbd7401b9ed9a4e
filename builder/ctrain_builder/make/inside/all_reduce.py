"""Two processes sum their ranks with Horovod and check the result. Started by mpirun or horovodrun."""

from __future__ import annotations

import horovod.torch as hvd  # type: ignore[import-not-found,unused-ignore]  # only in the image
import torch  # type: ignore[import-not-found,unused-ignore]  # only in the image

hvd.init()
if hvd.size() != 2:
    raise SystemExit(f"each process sees a world of {hvd.size()}, not of 2")
total = hvd.allreduce(torch.full((1000,), float(hvd.rank() + 1)), op=hvd.Sum)
if not torch.equal(total, torch.full((1000,), 3.0)):
    raise SystemExit(f"the sum is {total[0].item()}, not 3")
hvd.shutdown()

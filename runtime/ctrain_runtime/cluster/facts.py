"""Facts about the machine, the engine and the cluster, detected once and then passed to the plan as data."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ctrain_runtime.cluster.engine_probe import ignores_layers
from ctrain_runtime.cluster.machine import gpu_maker
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.gpus import Maker
from ctrain_runtime.images.image import Image
from ctrain_runtime.store import lease


@dataclass(frozen=True)
class Facts:
    """Facts about this machine, the nodes of a run and the selected image on them.

    `gpu_maker`: the maker of this machine's GPUs. `gpus`: the types of those that the run uses. `ignores_layers`: the
    engine does not mount the image's overlay partitions. `lease_dir`: the writable directory for leases in its store;
    "" if there is none. `umask`: the caller's, in octal; "" if unknown.
    """

    is_root: bool
    engine: Engine
    gpu_maker: Maker = "nvidia"
    cluster: Cluster = field(default_factory=Cluster)
    ignores_layers: bool = False
    lease_dir: str = ""
    gpus: tuple[str, ...] = ()
    umask: str = ""


def detect_facts(cluster: Cluster, image: Image, engine: Engine, gpus: tuple[str, ...] = ()) -> Facts:
    """The facts about running `image` with `engine` on nodes with GPUs of these types."""
    root = os.geteuid() == 0
    ignores = ignores_layers(engine, image, root)
    leases = lease.writable_lease_dir(image.path)
    return Facts(root, engine, gpu_maker(), cluster, ignores, leases, gpus, _umask())


def _umask() -> str:
    """From proc(5), which Linux before 4.7 does not tell: os.umask would change it, for all threads."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    line = re.search(r"(?m)^Umask:\s*([0-7]+)$", status)
    return line[1][-3:] if line else ""

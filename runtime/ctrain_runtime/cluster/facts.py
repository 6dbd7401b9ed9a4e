"""Facts about the machine, the engine and the cluster, detected once and then passed to the plan as data."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ctrain_runtime.cluster.engine_probe import ignores_layers
from ctrain_runtime.cluster.machine import gpu_maker
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.gpus import Maker
from ctrain_runtime.images.image import Image
from ctrain_runtime.store import lease


@dataclass(frozen=True)
class Facts:
    """Facts about this machine, and about the selected image on it.

    `gpu_maker`: the maker of this machine's GPUs. `ignores_layers`: the engine does not mount the image's overlay
    partitions. `lease_dir`: the writable directory for leases in its store; "" if there is none.
    """

    is_root: bool
    engine: Engine
    gpu_maker: Maker = "nvidia"
    cluster: Cluster = field(default_factory=Cluster)
    ignores_layers: bool = False
    lease_dir: str = ""


def detect_facts(cluster: Cluster, image: Image, engine: Engine) -> Facts:
    """The facts about this machine and about running `image` on it with `engine`."""
    root = os.geteuid() == 0
    ignores = ignores_layers(engine, image, root)
    return Facts(root, engine, gpu_maker(), cluster, ignores, lease.writable_lease_dir(image.path))

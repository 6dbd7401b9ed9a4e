"""Facts about the machine, the engine and the cluster, detected once and then passed to the plan as data."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import command
from ctrain_runtime.base.time_limit import NodeRange
from ctrain_runtime.base.user_cache import UserCache
from ctrain_runtime.engines import apptainer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import CtrainError
from ctrain_runtime.gpus import DRIVER_FILE, Maker
from ctrain_runtime.image import LAYER_MARKER, Image
from ctrain_runtime.store import lease

_GPUS = Path("/proc/driver/nvidia/gpus")
_CPUS = Path("/proc/cpuinfo")
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_DRM = Path("/sys/class/drm")


@dataclass(frozen=True)
class Access:
    """The accounts or QOS that may use a partition: those `allowed`; if it is empty, all that are not `denied`."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    def admits(self, name: str) -> bool:
        """Whether `name` may use it; an unknown name ("") is not refused."""
        return not name or (name in self.allowed if self.allowed else name not in self.denied)


@dataclass(frozen=True)
class Partition:
    """A partition or queue. `nodes` are those that can be used; CPUs, GPUs and memory those of its smallest node.

    `cpus` are schedulable ones (hardware threads where the scheduler counts them, without cores reserved for the
    system); `memory` is in MB (0: unknown); `time_limit` in minutes (None: no limit); `arch` is the output of
    `uname -m` on its nodes ("": unknown, or several). One job may use from `min_nodes` to `max_nodes`, and `max_gpus`
    (None: no limit). `closed` is why it takes or starts no jobs of the caller ("": it does). `own_qos` is the QOS whose
    limits hold for its jobs; `limited_by` says whose limits these are, if not its own.
    `has_memory_default`: a job that requests no memory gets a share that the administrators chose.
    `cpu_bind` is the binding of ranks to cores ("": left to the cluster, or not supported).
    `idle` are the usable nodes without a job (None: unknown). `preemptible`: its jobs make way for those of others.
    `driver` is the version of NVIDIA's ("": unknown). `by_nodes` are the limits of time that depend on the number of
    nodes; a job outside of all of them would never start. Of a user's jobs `max_running` run at a time, and
    `max_submitted` may wait or run (None: unknown, or no limit).
    """

    name: str
    default: bool
    nodes: int
    cpus: int
    gpus: int
    gpu_type: str = ""
    time_limit: Optional[int] = None
    threads_per_core: int = 1
    memory: int = 0
    arch: str = ""
    min_nodes: int = 1
    max_nodes: Optional[int] = None
    max_gpus: Optional[int] = None
    closed: str = ""
    own_qos: str = ""
    limited_by: str = ""
    has_memory_default: bool = False
    cpu_bind: str = ""
    idle: Optional[int] = None
    preemptible: bool = False
    accounts: Access = Access()
    qos: Access = Access()
    driver: str = ""
    by_nodes: tuple[NodeRange, ...] = ()
    max_running: Optional[int] = None
    max_submitted: Optional[int] = None
    min_time: int = 0  # minutes that a job must ask for

    @property
    def scope(self) -> str:
        """Its name in messages about limits."""
        return f"partition {self.name}" + (f" ({self.limited_by})" if self.limited_by else "")


@dataclass(frozen=True)
class Limits:
    """The most that one job may use; `time_limit` is in minutes (None: no limit). `overrides`: a QOS that precedes that
    of the partition."""

    max_nodes: Optional[int] = None
    max_gpus: Optional[int] = None
    time_limit: Optional[int] = None
    overrides: bool = False


@dataclass(frozen=True)
class Allocation:
    """The allocation (salloc, sbatch) inside which ctrain was called; CPUs, GPUs and memory (MB) are those of a node in
    it (`gpus` None: the scheduler does not show how many). `in_step`: ctrain itself runs in a job step (an interactive
    srun), whose resources a second step must share. `minutes_left` is what remains of its time limit (None: no limit).
    """

    job_id: str
    nodes: int
    partition: str
    cpus: int
    gpus: Optional[int]
    memory: int = 0
    in_step: bool = False
    minutes_left: Optional[int] = None


@dataclass(frozen=True)
class Cluster:
    """A scheduler's cluster. `mpi`: its plugins that start MPI ranks.

    `memory_is_consumable`: memory is allocated like cores, so a job must ask for its share. `account` and `qos` are the
    caller's defaults, `name` is the cluster's ("": unknown). `clock_skew` is how many seconds the controller's clock is
    ahead (None: unknown). `partitions` are open, `closed` are not. `members` are the names of each partition's nodes,
    if known; `limits` those of "QOS NAME" and "account NAME", if enforced.
    """

    partitions: tuple[Partition, ...] = ()
    mpi: tuple[str, ...] = ()
    allocation: Optional[Allocation] = None
    memory_is_consumable: bool = False
    account: str = ""
    qos: str = ""
    name: str = ""
    clock_skew: Optional[float] = None
    closed: tuple[Partition, ...] = ()
    members: Mapping[str, frozenset[str]] = field(default_factory=dict)
    limits: Mapping[str, Limits] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """`gpu_maker`: whose GPUs this machine has. `ignores_layers`: the engine does not mount the overlay partitions of
    the selected image. `lease_dir`: the writable directory for leases in its store; "" if there is none."""

    is_root: bool
    engine: Engine
    gpu_maker: Maker = "nvidia"
    cluster: Cluster = field(default_factory=Cluster)
    ignores_layers: bool = False
    lease_dir: str = ""


def detect_facts(cluster: Cluster, image: Image, engine: Engine) -> Facts:
    """The facts about this machine and about running `image` on it with `engine`."""
    root = os.geteuid() == 0
    ignores = _ignores_layers(engine, image, root)
    return Facts(root, engine, gpu_maker(), cluster, ignores, lease.writable_lease_dir(image.path))


def count_gpus() -> int:
    """The NVIDIA GPUs of this machine."""
    return len(list(_GPUS.glob("*")))


def count_amd_gpus() -> int:
    """The AMD GPUs of this machine. Of the kernel's nodes, those that are CPUs have the id 0 (kfd_topology.c)."""
    ids = [path.read_text(encoding="ascii").strip() for path in _AMD_NODES.glob("*/gpu_id")]
    return len(ids) - ids.count("0")


def count_intel_gpus() -> int:
    """The Intel GPUs of this machine that have memory of their own: on Intel's CPUs graphics are on PCI bus 0."""
    cards = [
        file.parent for file in _DRM.glob("renderD*/device/vendor") if "0x8086" in file.read_text(encoding="ascii")
    ]
    return sum(card.resolve().name.split(":")[1:2] != ["00"] for card in cards)


def count_visible_gpus() -> int:
    """The GPUs of this machine that programs started here would see."""
    uuids = [uuid for text in _gpu_information() for uuid in re.findall(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)]
    nvidia = count_visible(count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
    amd = count_visible(count_amd_gpus(), os.environ.get("ROCR_VISIBLE_DEVICES"))
    return nvidia + count_visible(amd, os.environ.get("HIP_VISIBLE_DEVICES")) + _visible_intel_gpus()


def _visible_intel_gpus() -> int:
    """By ZE_AFFINITY_MASK: numbers of cards, or CARD.TILE; an empty one hides nothing (Level Zero's specification,
    Environment Variables; not seen on such a machine)."""
    count, mask = count_intel_gpus(), os.environ.get("ZE_AFFINITY_MASK", "")
    return min(count, len({entry.partition(".")[0].strip() for entry in mask.split(",")})) if mask else count


def count_visible(count: int, devices: Optional[str], uuids: Sequence[str] = ()) -> int:
    """How many of `count` GPUs a program sees with CUDA_VISIBLE_DEVICES=`devices` (None: unset); `uuids`: if known.

    As CUDA reads it (its Programming Guide, CUDA Environment Variables): a number, or the beginning of one UUID; the
    list ends before the first entry that is neither, as in "-1", and is empty if an entry comes twice. A process sees
    one MIG instance at most, and no whole GPU beside it.
    """
    if devices is None:
        return count
    seen: list[str] = []
    for entry in map(str.strip, devices.split(",")):
        if entry.startswith("MIG-"):
            return min(count, 1) if not seen else len(seen)
        of_uuid = [uuid for uuid in uuids if uuid.startswith(entry)] if entry.startswith("GPU-") else []
        if len(of_uuid) == 1:
            device = of_uuid[0]
        elif entry.isascii() and entry.isdigit() and len(entry) < 5 and int(entry) < count:
            device = str(int(entry))
        elif entry.startswith("GPU-") and not uuids:
            device = entry
        else:
            break
        if device in seen:
            return 0
        seen.append(device)
    return min(count, len(seen))


def gpu_maker() -> Maker:
    """Whose GPUs this machine has; NVIDIA's if it has several makers', or none."""
    if not count_gpus() and count_amd_gpus():
        return "amd"
    return "intel" if not count_gpus() and count_intel_gpus() else "nvidia"


def gpu_models() -> tuple[str, ...]:
    """The driver's names of this machine's NVIDIA GPUs, as in NVIDIA A100-SXM4-80GB; each model once."""
    models = (re.findall(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in _gpu_information())
    return tuple(dict.fromkeys(model for each in models for model in each))


def _gpu_information() -> list[str]:
    """What the driver tells of each of NVIDIA's GPUs."""
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(_GPUS.glob("*/information"))]


def cpu_instructions() -> frozenset[str]:
    """What this machine's CPU has besides the basic instructions, by Linux's names; empty where it lists none."""
    with _CPUS.open(encoding="ascii", errors="replace") as file:
        flags = re.search(r"(?m)^flags\s*: (.*)$", file.read(1 << 14))  # of the first core
    return frozenset(flags[1].split()) if flags else frozenset()


def driver_version() -> str:
    """The version of this machine's NVIDIA driver; "" without one."""
    try:
        text = DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    version = re.search(r"Kernel Module.*?\s(\d{3}[.\d]*)", text)
    return version[1] if version else ""


def _ignores_layers(engine: Engine, image: Image, root: bool) -> bool:
    """Whether the engine does not mount the layers of `image`. The answer is cached: a container takes a while to
    start, and each rank checks its layers anyway."""
    if not image.marker or image.manifest.flat or not command.which(engine.path):
        return False
    # The same engine mounts all layers or none, as long as its configuration stands.
    cache, conditions = UserCache("engines"), [socket.gethostname(), engine.version, root]
    conditions += [_changed(path) for path in (*_configurations(engine), Path(engine.path))]
    ignores = cache.get(engine.path, conditions)
    if ignores is None:
        ignores = _probe_layers(engine, image, root)
        if ignores is not None:
            cache.put(engine.path, conditions, ignores)
    return bool(ignores)


def _configurations(engine: Engine) -> list[Path]:
    """Where an engine may have its configuration: distributions' packages in /etc, others where they are installed."""
    etc = Path("/etc"), Path(command.which(engine.path) or engine.path).resolve().parent.parent / "etc"
    return [directory / engine.name / f"{engine.name}.conf" for directory in etc]


def _changed(path: Path) -> int:
    """The modification time of a file in ns; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _probe_layers(engine: Engine, image: Image, root: bool) -> Optional[bool]:
    """Whether a container of `image` starts and lacks its layers; None if it does not start."""
    argv = apptainer.exec_argv(engine, as_root=root, unmounted="cwd,home,tmp")
    inside = ["/bin/sh", "-c", f"echo started; cat /{LAYER_MARKER}"]
    environ = apptainer.clean_environ(os.environ)
    command_line = [*argv, str(image.path), *inside]
    try:
        words = command.run(command_line, env=environ, check=False).stdout.split()
    except CtrainError:
        return None
    return words[1:] != [image.marker] if words[:1] == ["started"] else None

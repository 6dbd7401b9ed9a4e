"""The keys of a site file, by which everything about a cluster is data: docs/sites.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Union

from ctrain_runtime.site.default_runs import default_runs


@dataclass(frozen=True)
class Detect:
    """The criteria of a site: all of these programs on PATH and all of these paths."""

    commands: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteEngine:
    """The engine of the compute nodes.

    `path`: absolute, or a name on their PATH ("": the one found here); `version`: its version, for login nodes that
    lack the engine. `modules`: loaded before it; one that begins with / is a directory of module files.
    `fakeroot`: containers do not start without --fakeroot.
    """

    path: str = ""
    version: str = ""
    modules: tuple[str, ...] = ()
    fakeroot: bool = False


@dataclass(frozen=True)
class SitePartition:
    """A partition as administrators describe it, where the scheduler does not say, or where there is none to ask.

    The numbers are those of a node; `arch` is the output of `uname -m`. `time_limit` is as for --time, one for all jobs
    or one for each range of nodes, as in {"10-24": "3:00:00"}. `cpus` are those that the scheduler counts, of which a
    core has `threads_per_core`.
    """

    nodes: int
    cpus: int
    gpus: int = 0
    gpu_type: str = ""
    arch: str = ""
    time_limit: Union[str, dict[str, str]] = "UNLIMITED"
    driver: str = ""  # version of NVIDIA's: the oldest of the partition's nodes
    min_nodes: int = 1  # of a job
    max_nodes: Optional[int] = None  # of a job; None: `nodes`
    threads_per_core: int = 1
    max_running: Optional[int] = None  # jobs of one user at a time
    max_submitted: Optional[int] = None  # those and the ones that wait
    min_time: str = ""  # the least that a job must ask for


@dataclass(frozen=True)
class SiteQos:
    """The limits of the jobs of a QOS, where there is no scheduler to ask."""

    time_limit: str = "UNLIMITED"
    max_nodes: Optional[int] = None


@dataclass(frozen=True)
class Conditional:
    """The value of a variable that holds for images whose NCCL is of the version `since_nccl` or newer."""

    value: str
    since_nccl: str


@dataclass(frozen=True)
class SiteNotes:
    """Lines for users of what nobody has seen work at a site: of all runs, and of those on several nodes."""

    always: str = ""
    multinode: str = ""


@dataclass(frozen=True)
class ExpectedBandwidth:
    """The bus bandwidth of an all-reduce on several nodes by torch's back ends, in GB/s; 0 if unknown."""

    gloo: Union[int, float] = 0
    nccl: Union[int, float] = 0


@dataclass(frozen=True)
class Site:
    """The keys of a site file: docs/sites.md."""

    name: str
    scheduler: str
    description: str = ""
    extends: str = ""
    detect: Detect = field(default_factory=Detect)
    login: str = ""  # HOST or USER@HOST of its login node, for machines that are not part of it
    stores: tuple[str, ...] = ()
    require_signature: bool = False
    trusted_keys: tuple[str, ...] = ()
    images: Literal["any", "store"] = "any"  # store: only images of the site's stores
    image_cache: str = ""  # a shared directory for pulled images
    layer_caches: tuple[str, ...] = ()  # repositories (oras://HOST/PATH) from which `ctrain build` takes layers
    runs: str = field(default_factory=default_runs)  # directory of run directories; all nodes of a cluster share it
    share_runs: bool = False  # others may enter run directories as far as the umask allows
    engine: SiteEngine = field(default_factory=SiteEngine)
    partitions: dict[str, SitePartition] = field(default_factory=dict)
    partition: str = ""
    partition_order: tuple[str, ...] = ()  # the preferred one first, where none is named
    qos: dict[str, SiteQos] = field(default_factory=dict)
    default_qos: str = ""  # that of jobs that name none, where there is no scheduler to ask
    interactive_time: str = ""  # the longest that an interactive job may take
    not_requested: tuple[Literal["gpus", "memory", "partition"], ...] = ()  # what jobs must not ask for
    required: tuple[str, ...] = ()  # options without which the site rejects jobs: account ...
    comment: str = ""
    notify: str = ""  # a command that is told of the start and the end of runs
    submit: tuple[str, ...] = ()  # further options of sbatch, one per list item
    mpi: tuple[str, ...] = ("pmix", "pmi2")  # in order of preference
    cpus_per_gpu: Optional[int] = None
    memory_per_gpu: Optional[int] = None  # MB
    job_threads_per_core: Optional[int] = None  # that a job gets by the site's default
    cpu_bind: str = ""
    gpu_order: tuple[int, ...] = ()  # a node's GPUs in the order of the cores next to them
    cache: str = ""  # a shared directory for downloaded models
    staging: str = ""  # a directory on each node's own disk, to which images are copied
    expected_bandwidth: ExpectedBandwidth = field(default_factory=ExpectedBandwidth)
    nccl_network: str = ""  # as NCCL names it in its log: IB, AWS Libfabric, Socket
    address_suffix: str = ""  # of a node's name in the fast network, for MASTER_ADDR
    datasets: dict[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    host_libraries: tuple[str, ...] = ()  # patterns of files of the nodes that the image's libraries get
    library_paths: tuple[str, ...] = ()  # first on LD_LIBRARY_PATH in the container
    mpi_library_paths: tuple[str, ...] = ()  # before these, where the scheduler starts MPI ranks
    env: dict[str, str] = field(default_factory=dict)
    env_multinode: dict[str, Union[str, Conditional]] = field(default_factory=dict)  # of runs on several nodes
    notes: SiteNotes = field(default_factory=SiteNotes)

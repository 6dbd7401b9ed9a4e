"""The launch plan, plain frozen data that --dry-run prints and plan.json keeps, and what else it is made from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from ctrain_runtime.cluster.model import Constraint
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import UsageError
from ctrain_runtime.job import Value
from ctrain_runtime.plan.size import JobSize

if TYPE_CHECKING:  # start-up is measured
    from ctrain_runtime.images.image import Image
    from ctrain_runtime.images.user_layer import UserLayer

IMAGE_ROOT = "image-src=/,"  # how engines are asked for the contents of an image ("Bind Paths and Mounts")


@dataclass(frozen=True)
class CodeCopy:
    """The job's directory, of which the run has a copy; `live` are the paths below it that stay where they are.
    `source` is the copy of the run that this one replays ("": the directory itself is copied)."""

    directory: str
    live: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Inputs:
    """What the options and the job name, as run/inputs has read it."""

    flat: Optional[Image] = None  # the flattened image that can take the image's place
    layers: tuple[UserLayer, ...] = ()  # the job's, then those of the command line
    resume: str = ""  # directory of an earlier run's checkpoint
    code: Optional[CodeCopy] = None
    after: str = ""  # the id of a job of the same queue
    after_any: bool = False  # it may end with any code
    notify: tuple[str, ...] = ()  # the words of a command


@dataclass(frozen=True)
class Mount:
    """A host path and where the container sees it. `is_image`: the path is a file whose file system is mounted."""

    source: str
    target: str
    read_only: bool
    is_image: bool = False

    def __post_init__(self) -> None:
        for path in (self.source, self.target):
            if any(character in path for character in ":,\n"):
                raise UsageError(f"cannot mount {path!r}: engines read ':' and ',' as separators", "Use another path")
            if not path.startswith("/"):
                raise UsageError(f"cannot mount {path!r}: not an absolute path", "Begin it with /")

    def __str__(self) -> str:
        return f"{self.source}:{self.target}:{IMAGE_ROOT if self.is_image else ''}{'ro' if self.read_only else 'rw'}"


@dataclass(frozen=True)
class PlannedUserLayer:
    """A user layer of a run. `key` marks it inside, which every rank asserts; `digest` is the file's."""

    path: str
    digest: str
    key: str
    packages: dict[str, str]

    def __post_init__(self) -> None:
        if any(character in self.path for character in ":,\n"):
            raise UsageError(f"cannot mount layer {self.path!r}: engines read ':' and ',' as separators", "Rename it")


@dataclass(frozen=True)
class PlannedImage:
    """The image of a run, its user layers and the engine. `marker` is the key of its topmost layer, asserted by every
    rank at its start.

    `instead_of` is the version of the image that was asked for, if this is the flattened one in its place. With drivers
    before `native_driver` (0: unknown) its CUDA needs forward compatibility. `lease` is the file of the lease on it in
    the store ("": none).
    """

    name: str
    version: str
    channel: str
    digest: str
    path: str
    marker: str
    cuda: bool
    instead_of: str
    engine: Engine
    layers: tuple[PlannedUserLayer, ...] = ()
    lease: str = ""
    native_driver: int = 0
    rocm: bool = False
    size: int = 0  # bytes


@dataclass(frozen=True)
class DataCopy:
    """The image of the data set on the nodes' own disks: each copies it to `directory` before the ranks start."""

    mount: Mount
    digest: str
    size: int  # bytes
    directory: str


@dataclass(frozen=True)
class Preflight:
    """The step before the ranks that proves nodes, network and ranks, and the `reason` why it takes place.

    `strict`: its failure ends the job; else it is only reported. `backend` is that of torch which is measured,
    `expected` its bus bandwidth in GB/s (0: unknown), `network` NCCL's name of what it must choose ("": any).
    """

    strict: bool
    reason: str
    backend: str = "gloo"
    expected: float = 0.0
    network: str = ""


@dataclass(frozen=True)
class Expectation:
    """What a run will need, by an estimate. Memory is in bytes per rank: `memory` by part, `usable` of a GPU; `tokens`
    are those of a step, and `training` has the fields of the estimate's model and layout. By published runs, a step
    takes `fastest` to `slowest` seconds. Without a known type of GPU (`gpu` is ""), these and `usable` are None."""

    gpu: str
    parameters: int
    memory: dict[str, int]
    usable: Optional[int]
    tokens: int
    steps: int
    step_seconds: Optional[float]
    training: dict[str, Value] = field(default_factory=dict)
    fastest: Optional[float] = None
    slowest: Optional[float] = None


@dataclass(frozen=True)
class Program:
    """What runs, and how its ranks start.

    `mpi` is how the scheduler starts MPI ranks, "" when it need not; `task_starter` is what starts tasks, where the
    scheduler has a choice ("": its own way). With `independent`, declared or one rank alone, ranks form no world: no
    RANK, no rendezvous, GPUs of its own for each task. An `interactive` one has the user's terminal, and nothing is
    recorded.
    """

    command: tuple[str, ...]
    workdir: str
    launcher: str
    mpi: str = ""
    task_starter: str = ""
    independent: bool = False
    interactive: bool = False
    as_root: bool = False
    umask: str = ""  # the caller's, in octal; "": unknown
    restarts: int = 0  # how often it may start again in the job after a rank has failed
    parameters: dict[str, str] = field(default_factory=dict)  # its settings, which are words of the command
    on_hang: str = "report"  # or restart, stop
    hang_after: int = 0  # seconds without a sign of life after which it hangs; 0: learned
    retries: int = 0  # how often its job may be queued again
    until_done: bool = False  # as often as it takes

    @property
    def is_requeued(self) -> bool:
        """Whether its job is queued again if it ends early."""
        return self.until_done or self.retries > 0

    @property
    def has_attempts(self) -> bool:
        """Whether it may start more than once."""
        return self.restarts > 0 or self.is_requeued


@dataclass(frozen=True)
class Placement:
    """Where a run takes place, and what its scheduler is asked for besides its size.

    `allocation` is the job inside which it takes place, if any, and `in_step` whether it must share the resources of a
    job step there. `cluster` is the scheduler's name for it, where the job's number counts ("": unknown, or none).
    """

    partition: str = ""
    constraint: Optional[Constraint] = None  # on its nodes
    allocation: Optional[str] = None
    in_step: bool = False
    after: str = ""  # the id of the job that must have ended with exit code 0 before this one starts
    after_any: bool = False  # or with any code
    cluster: str = ""
    settings: dict[str, str] = field(default_factory=dict)  # options that every scheduler has: account, comment ...
    options: tuple[str, ...] = ()  # further options of the scheduler's submission command, as they are
    not_requested: tuple[str, ...] = ()  # what the site's jobs must not ask for: gpus, memory, partition
    cpu_bind: str = ""
    gpu_order: tuple[int, ...] = ()  # a node's GPUs by local rank; empty: as the node numbers them
    address_suffix: str = ""  # of the first node's name, for MASTER_ADDR

    @property
    def is_queued(self) -> bool:
        """Whether a job waits for its turn; without a scheduler, and in an allocation, it starts at once."""
        return bool(self.partition) and not self.allocation


@dataclass(frozen=True)
class Environment:
    """What programs find in the container besides the image. `passed` are variables whose values come from the caller's
    environment and are written nowhere."""

    variables: dict[str, str]
    origins: dict[str, str] = field(default_factory=dict)  # of each of them: site, job, option ...
    passed: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()  # that put the engine on the PATH of a node
    host_libraries: tuple[str, ...] = ()  # patterns of files of the nodes, which the container gets where they exist
    library_paths: tuple[str, ...] = ()  # first on LD_LIBRARY_PATH


@dataclass(frozen=True)
class Mounts:
    """The host paths that the container sees, in order. `data` is the one of the data set, `resume` that of the
    checkpoint of an earlier run ("": none). With `code`, it sees a copy in place of the job's directory."""

    paths: tuple[Mount, ...]
    data: str = ""
    resume: str = ""
    code: Optional[CodeCopy] = None


@dataclass(frozen=True)
class Staging:
    """The copies on the nodes' own disks. A copy of the image in `directory` is used ("": none), and if it `copies`
    each node gets one first; the `reason` is for the user."""

    directory: str = ""
    copies: bool = False
    reason: str = ""
    data_copy: Optional[DataCopy] = None


@dataclass(frozen=True)
class Checks:
    """What is known or checked before the program starts. `notes` are lines for the user on the estimate."""

    preflight: Optional[Preflight] = None
    estimate: Optional[Expectation] = None
    notes: tuple[str, ...] = ()


def count_tasks(launcher: str, size: JobSize) -> int:
    """How many tasks the scheduler starts for the ranks."""
    return {"torchrun": size.nodes, "node": size.nodes, "mpirun": 1}.get(launcher, size.world_size)


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that decides a run. `private`: its directory is for its owner only.

    The scheduler starts `tasks` tasks; a rank is one training process. The launcher relates them: `mpi`, `env` and
    `gloo` have one rank per task, `torchrun` a node's ranks, `mpirun` all of them; `node` has a task per node, whose
    command starts the node's ranks itself.
    """

    run: str
    run_directory: str
    private: bool
    job: str
    site: str
    scheduler: str
    image: PlannedImage
    program: Program
    size: JobSize
    placement: Placement
    environment: Environment
    mounts: Mounts
    staging: Staging = Staging()
    checks: Checks = Checks()
    notify: tuple[str, ...] = ()  # the words of the command that is told of start and end

    @property
    def tasks(self) -> int:
        return count_tasks(self.program.launcher, self.size)

    @property
    def tasks_per_node(self) -> int:
        return max(1, self.tasks // self.size.nodes)

    @property
    def ranks_per_task(self) -> int:
        return self.size.world_size // self.tasks

    @property
    def cpus_per_task(self) -> int:
        return self.size.cpus_per_rank * self.ranks_per_task

    @property
    def crosses_network(self) -> bool:
        """Whether its nodes are several machines: without a scheduler they are groups of ranks on one."""
        return self.size.nodes > 1 and bool(self.placement.partition)

    @property
    def recorded_ranks(self) -> int:
        """How many processes have a log and a recorded start and end: ctrain does not start those below `node`."""
        return self.size.nodes if self.program.launcher == "node" else self.size.world_size

    @property
    def is_watched(self) -> bool:
        """Whether hangs are looked for: independent tasks wait for nobody."""
        return not self.program.interactive and not (self.program.independent and self.tasks > 1)

    @property
    def watched_nodes(self) -> int:
        """How many watches there are, each of as many recorded ranks: one per node that has tasks."""
        return min(self.tasks, self.size.nodes)

    @property
    def unit(self) -> str:
        """What each of them is called."""
        is_task = self.program.independent and self.tasks > 1
        return "node" if self.program.launcher == "node" else "task" if is_task else "rank"

    def describe(self, number: int, host: str) -> str:
        """One of them, for messages."""
        return f"the command on {host}" if self.unit == "node" else f"{self.unit} {number} on {host}"

    @property
    def run_key(self) -> str:
        """A short name for the run that is unique on a node."""
        return hashlib.sha256(self.run_directory.encode(errors="surrogateescape")).hexdigest()[:12]


@dataclass(frozen=True)
class Launch:
    """A plan in the form that a scheduler runs.

    `argv` is run in the run directory and starts it; `scripts` maps names of files there to their whole text, and
    `files` names those that are the same in every run (payload/).
    """

    plan: LaunchPlan
    argv: tuple[str, ...]
    scripts: dict[str, str]
    files: tuple[str, ...] = ()

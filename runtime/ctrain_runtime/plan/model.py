"""The launch plan and the options that shape it: plain frozen data, printed by --dry-run and kept as plan.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ctrain_runtime.errors import UsageError
from ctrain_runtime.facts import Engine
from ctrain_runtime.user_layer import UserLayer


@dataclass(frozen=True)
class Options:
    """What the command line said. None and "" mean: not said."""

    nodes: Optional[int] = None
    gpus_per_node: Optional[int] = None
    ranks_per_node: Optional[int] = None
    partition: str = ""
    time: str = ""
    comment: str = ""
    data: str = ""
    env: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    resume: str = ""  # folder of an earlier run's checkpoint
    layers: tuple[UserLayer, ...] = ()  # the job's, then those of the command line


@dataclass(frozen=True)
class Mount:
    """A host path and where the container sees it."""

    source: str
    target: str
    read_only: bool

    def __post_init__(self) -> None:
        for path in (self.source, self.target):
            if any(character in path for character in ":,\n"):
                raise UsageError(f"can't mount {path!r}: engines read ':' and ',' as separators", "Use another path")
            if not path.startswith("/"):
                raise UsageError(f"can't mount {path!r}: it is not an absolute path")

    def __str__(self) -> str:
        return f"{self.source}:{self.target}:{'ro' if self.read_only else 'rw'}"


@dataclass(frozen=True)
class PlannedImage:
    """The image of a run. `marker` is the key of its topmost layer, asserted by every rank at its start.

    `instead_of` is the version of the image that was asked for, if this is the flattened one in its place. `base` is
    the file below that of a thin image; "" for others.
    """

    name: str
    version: str
    channel: str
    digest: str
    path: str
    marker: str
    cuda: bool
    instead_of: str
    base: str

    @property
    def root(self) -> str:
        """The file that an engine runs."""
        return self.base or self.path


@dataclass(frozen=True)
class PlannedLayer:
    """A user layer of a run. `key` marks it inside, which every rank asserts; `digest` is the file's."""

    path: str
    digest: str
    key: str
    packages: dict[str, str]

    def __post_init__(self) -> None:
        if any(character in self.path for character in ":,\n"):
            raise UsageError(f"can't mount layer {self.path!r}: engines read ':' and ',' as separators", "Rename it")


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that decides a run. Sizes: cpus_per_rank in cores, time as Slurm writes it (D-HH:MM:SS). `lease` is
    the file that tells the store that the image is needed; "" without one."""

    run: str
    run_directory: str
    job: str
    site: str
    scheduler: str
    image: PlannedImage
    layers: tuple[PlannedLayer, ...]
    engine: Engine
    launcher: str
    mpi: str
    nodes: int
    ranks_per_node: int
    world_size: int
    gpus_per_node: int
    cpus_per_rank: int
    partition: str
    time: str
    submit: tuple[str, ...]
    allocation: Optional[str]
    command: tuple[str, ...]
    workdir: str
    environment: dict[str, str]
    mounts: tuple[Mount, ...]
    lease: str
    root: bool


@dataclass(frozen=True)
class Launch:
    """A plan turned into what a scheduler runs: `argv` starts it, `scripts` are the files that it needs.

    `argv` is run in the run directory; `scripts` maps file names in it to their whole text.
    """

    plan: LaunchPlan
    argv: tuple[str, ...]
    scripts: dict[str, str]

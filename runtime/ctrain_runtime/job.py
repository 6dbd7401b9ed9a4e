"""What is run: a packaged example, a user's folder with a job.yaml, or a plain command. Keys: docs/jobs.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Optional, Union

from ctrain_runtime import config, share, strict_yaml
from ctrain_runtime.errors import ConfigError, JobError, UsageError

EXAMPLES_DIR_IN_IMAGE = "/opt/ctrain/examples"  # where definitions/train puts the examples inside an image
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
Launcher = Literal["mpi", "env", "torchrun"]
Count = Union[int, str]  # a number, or "auto"


@dataclass(frozen=True)
class Resources:
    """What a job asks for when the command line doesn't say. "auto" follows the nodes of the partition."""

    nodes: int = 1
    gpus_per_node: Count = "auto"
    ranks_per_node: Count = "auto"
    time: str = "1:00:00"


@dataclass(frozen=True)
class Dataset:
    """A data set: the site's name for it, and where the program finds it."""

    dataset: str
    mount: str = "/data"


@dataclass(frozen=True)
class JobFile:
    """The keys of job.yaml."""

    command: tuple[str, ...]
    image: Union[str, tuple[str, ...]]
    description: str = ""
    launcher: Launcher = "mpi"
    resources: Resources = field(default_factory=Resources)
    data: Optional[Dataset] = None
    env: dict[str, Union[str, int]] = field(default_factory=dict)
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A job ready to be planned. `folder` is the host folder it runs in; None means that it is baked into the image."""

    name: str
    command: tuple[str, ...]
    images: tuple[str, ...]
    launcher: str
    resources: Resources
    data: Optional[Dataset]
    env: dict[str, str]
    workdir: str
    folder: Optional[Path] = None
    layers: tuple[Path, ...] = ()


def find(reference: str) -> Job:
    """The job for NAME (a packaged example) or ./FOLDER (a folder with a job.yaml). Raises JobError."""
    if "/" in reference or reference in (".", ".."):
        folder = Path(reference).resolve()
        if not (folder / "job.yaml").is_file():
            raise JobError(f"there is no {folder / 'job.yaml'}", "A job is a folder with a job.yaml: see docs/jobs.md")
        return _load(folder, str(folder), folder)
    examples = share.data_dir("examples")
    if reference not in names():
        raise JobError(f"unknown job {reference!r}", f"Jobs: {', '.join(names())}; or ./FOLDER with a job.yaml")
    return _load(examples / reference, f"{EXAMPLES_DIR_IN_IMAGE}/{reference}", None)


def names() -> list[str]:
    """The packaged jobs."""
    return sorted(path.parent.name for path in share.data_dir("examples").glob("*/job.yaml"))


def from_command(command: tuple[str, ...], folder: Path) -> Job:
    """The job for `ctrain run -- COMMAND`, run in `folder`."""
    if not command:
        raise UsageError("there is nothing to run", "Give a job (ctrain run resnet50) or a command after --")
    program = next((word for word in command[1:] if (folder / word).is_file()), command[0])
    return Job(_name(Path(program).stem), command, (), "mpi", Resources(), None, {}, str(folder), folder)


def _load(folder: Path, workdir: str, bound: Optional[Path]) -> Job:
    path = folder / "job.yaml"
    try:
        keys = config.load(JobFile, strict_yaml.read(path), str(path))
    except ConfigError as error:
        raise JobError(error.message, error.hint) from error
    if not keys.command:
        raise JobError(f"{path}: command is empty", "Name the program, as in: command: [python, train.py]")
    for key in ("gpus_per_node", "ranks_per_node"):
        value = getattr(keys.resources, key)
        if isinstance(value, str) and value != "auto":
            raise JobError(f"{path}: resources: {key} is {value!r}", "It can be a number or auto")
    images = (keys.image,) if isinstance(keys.image, str) else keys.image
    env = {key: str(value) for key, value in keys.env.items()}
    layers = tuple(folder / Path(layer).expanduser() for layer in keys.layers)
    rest = (keys.launcher, keys.resources, keys.data, env, workdir, bound, layers)
    return Job(_name(folder.name), keys.command, images, *rest)


def _name(text: str) -> str:
    """`text` as a name that is safe in paths and in Slurm."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "job"

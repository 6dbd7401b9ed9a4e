"""Jobs: a packaged example, a directory with a job.yaml, or a plain command. Keys: docs/jobs.md."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional, Union

from ctrain_runtime.base import config, paths, strict_yaml
from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.base.suggest import closest, suggest
from ctrain_runtime.base.time_limit import parse_limit
from ctrain_runtime.errors import ConfigError, JobError, UsageError

EXAMPLES_DIR_IN_IMAGE = "/opt/ctrain/examples"  # where definitions/train puts the examples inside an image
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
JOB_FILE = "job.yaml"
_INTERPRETERS = re.compile(r"python[0-9.]*|bash|sh")
_NO_SCRIPT = re.compile(r"-|-[A-Za-z]*[cm]")  # the program is standard input, a text or a module
_OPTIONS_WITH_VALUE = ("-W", "-X", "-o", "-O")  # of these interpreters, before the script
PARAMETER = re.compile(r"[A-Za-z0-9_+~@][A-Za-z0-9_+~@./-]*")  # the name of one, also in the notation of Hydra
KEY_VALUE = "key=value"
ParameterStyle = Literal["--key value", "key=value"]
OnHang = Literal["report", "restart", "stop"]
Launcher = Literal["auto", "mpi", "env", "torchrun", "gloo", "node"]
Count = Union[int, str]  # a number, or "auto"
Written = Union[str, int, float]  # a string, or a number that is kept as it is written
Value = Union[Written, bool]


@dataclass(frozen=True)
class Resources:
    """A job's defaults for the options of the command line. "auto": as many as a node of the partition has."""

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
class Training:
    """The training of a job, in the terms of `ctrain estimate`.

    NAME=DEFAULT is a setting of the program, `all` the number of ranks. `when` changes the model and the layout: for
    the setting NAME=VALUE, keys and their values.
    """

    model: dict[str, Value]
    layout: dict[str, Value]
    steps: Value
    when: dict[str, dict[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobFile:
    """The keys of job.yaml."""

    command: tuple[Written, ...]
    image: Union[str, tuple[str, ...]]
    description: str = ""
    launcher: Launcher = "auto"
    resources: Resources = field(default_factory=Resources)
    data: Optional[Dataset] = None
    env: dict[str, Written] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    training: Optional[Training] = None
    ranks: Literal["world", "independent"] = "world"
    restarts: int = 0
    parameters: dict[str, Written] = field(default_factory=dict)
    parameter_style: ParameterStyle = "--key value"
    hang_after: str = ""
    on_hang: OnHang = "report"
    retries: Union[int, Literal["until done"]] = 0


@dataclass(frozen=True)
class Job:
    """A job ready to be planned.

    `directory`: the host directory it runs in, None if it is part of the image; `file`: its job.yaml, None for a
    command. `independent`: its ranks form no world. `parameters`: settings of the program, which follow the command.
    `interactive`: it has the user's terminal.
    """

    name: str
    command: tuple[str, ...]
    images: tuple[str, ...]
    launcher: str
    resources: Resources
    data: Optional[Dataset]
    env: dict[str, str]
    workdir: str
    directory: Optional[Path] = None
    layers: tuple[Path, ...] = ()
    training: Optional[Training] = None
    file: Optional[Path] = None
    independent: bool = False
    restarts: int = 0
    parameters: dict[str, str] = field(default_factory=dict)
    parameter_style: str = "--key value"
    hang_after: str = ""
    on_hang: str = "report"
    retries: Union[int, Literal["until done"]] = 0
    interactive: bool = False

    @property
    def where(self) -> str:
        """What complaints about a key begin with."""
        return str(self.file or f"job {self.name}")


def find(reference: str) -> Job:
    """The job for NAME (a packaged example) or ./DIRECTORY (with a job.yaml). Raises JobError."""
    if "/" in reference or reference in (".", ".."):
        directory = Path(reference).resolve()
        if not (directory / JOB_FILE).is_file():
            rule = "A job is a directory with a job.yaml; see: ctrain help jobs"
            raise JobError(f"{directory / JOB_FILE} not found", f"{_suggest_job(reference)} {rule}".strip())
        return _load(directory, str(directory), directory)
    examples = paths.data_dir("examples")
    if reference not in names():
        near = f"Did you mean ./{reference}?" if is_job_directory(f"./{reference}") else suggest(reference, names())
        available = f"Jobs: {', '.join(names())}; or ./DIRECTORY with a job.yaml"
        raise JobError(f"unknown job {reference!r}", f"{near} {available}".strip())
    return _load(examples / reference, f"{EXAMPLES_DIR_IN_IMAGE}/{reference}", None)


def is_job_directory(reference: str) -> bool:
    """Whether `reference` is the path of a directory with a job.yaml."""
    return (Path(reference) / JOB_FILE).is_file()


def _suggest_job(reference: str) -> str:
    """What to do with a job.yml; "Did you mean" the parent of this job.yaml, a packaged job, or a job beside the
    missing directory; else ""."""
    if (misnamed := Path(reference, "job.yml")).is_file():
        return f"Rename {misnamed} to {JOB_FILE}."
    parent, name = os.path.split(reference.rstrip("/"))
    if name == JOB_FILE and is_job_directory(parent):
        return f"Did you mean {parent}?"
    if name in names():
        return f"Did you mean {name}?"
    near = closest(name, [file.parent.name for file in Path(parent).glob(f"*/{JOB_FILE}")])
    return f"Did you mean {parent.rstrip('/')}/{near}?" if near else ""  # a Path would drop the ./


def names() -> list[str]:
    """The packaged jobs."""
    return sorted(path.parent.name for path in paths.data_dir("examples").glob("*/job.yaml"))


def from_command(command: tuple[str, ...], directory: Path, name: str = "") -> Job:
    """The job for `ctrain run -- COMMAND`, run in `directory`; `name` is its program's unless given."""
    if not command or not command[0]:
        raise UsageError("no job or command given", "Use: ctrain run JOB, or ctrain run -- COMMAND")
    # Path.is_file raises for a word that is too long for a file's name.
    files = [word for word in command[1:] if os.path.isfile(directory / word)]  # noqa: PTH113
    of_python = [word for word in files if word.endswith(".py")]  # before it, options may name other files
    program = script_of(command) or next(iter([*of_python, *files]), command[0])
    name = _name(name or _module_of(command) or Path(program).stem)
    job = Job(name, command, (), "auto", Resources(), None, {}, str(directory), directory)
    script = missing_script(job)
    if script:
        raise UsageError(f"{script} not found in {directory}", _script_hint(script, directory))
    return job


def missing_script(job: Job) -> Optional[str]:
    """The script that the job's command names, as in `python train.py`, if its host directory lacks it.

    None without a host directory, and if the script may be elsewhere: an absolute path may be one of the image.
    """
    script = script_of(job.command)
    if job.directory is None or not script or Path(script).is_absolute() or (job.directory / script).exists():
        return None
    return script


def script_of(command: tuple[str, ...]) -> str:
    """The script that Python or a shell runs; "" for anything else (-m, -c), and for other programs."""
    instead, words = _behind_options(command)
    return words[0] if not instead and words and words[0].endswith((".py", ".sh")) else ""


def _module_of(command: tuple[str, ...]) -> str:
    """The module that Python runs; "" for anything else."""
    instead, words = _behind_options(command)
    return words[0] if instead.endswith("m") and words else ""


def _behind_options(command: tuple[str, ...]) -> tuple[str, list[str]]:
    """The option by which an interpreter runs something else than a script (-m, -c, -; "" without), and the words
    behind its options; none for other programs."""
    program, *words = command
    if not _INTERPRETERS.fullmatch(Path(program).name):
        return "", []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if _NO_SCRIPT.fullmatch(option):
            return option, words
        if option in _OPTIONS_WITH_VALUE:
            words = words[1:]
    return "", words


def _script_hint(script: str, directory: Path) -> str:
    near = suggest(script, [file.name for file in directory.glob(f"*{Path(script).suffix}")])
    return f"{near} A script of the image needs its absolute path".strip()


def _load(directory: Path, workdir: str, mounted: Optional[Path]) -> Job:
    path = directory / JOB_FILE
    try:
        keys = config.load(JobFile, strict_yaml.read(path), str(path))
        written = strict_yaml.read(path, numbers_as_written=True)
    except ConfigError as error:
        raise JobError(error.message, error.hint) from error
    _check(keys, path)
    images = (keys.image,) if isinstance(keys.image, str) else keys.image
    layers = tuple(directory / expand_home(layer) for layer in keys.layers)
    env, parameters = (_as_written(written.get(key, {})) for key in ("env", "parameters"))
    rest = (keys.launcher, keys.resources, keys.data, env, workdir, mounted, layers, keys.training, path)
    more = (keys.ranks == "independent", keys.restarts, parameters, keys.parameter_style)
    failures = (keys.hang_after, keys.on_hang, keys.retries)
    job = Job(_name(directory.name), tuple(written["command"]), images, *rest, *more, *failures)
    script = missing_script(job)
    if script:
        raise JobError(f"{path}: command: {script} not found in {directory}", _script_hint(script, directory))
    return job


def _as_written(values: dict[Any, str]) -> dict[str, str]:
    return {str(name): value for name, value in values.items()}


def _check(keys: JobFile, path: Path) -> None:
    """Raise JobError, with file and key, for an invalid value of the right type."""
    if not keys.command:
        raise JobError(f"{path}: command is empty", "Name the program, as in: command: [python, train.py]")
    if not keys.image:
        raise JobError(f"{path}: image is empty", "Name one, as in: image: pytorch; list images with: ctrain images")
    if keys.ranks == "independent" and keys.launcher not in ("auto", "env"):
        raise JobError(f"{path}: independent ranks have no launcher {keys.launcher}", "Leave out launcher")
    _check_count(f"{path}: resources.nodes", keys.resources.nodes, 1)
    _check_count(f"{path}: resources.gpus_per_node", keys.resources.gpus_per_node, 0, "auto")
    _check_count(f"{path}: resources.ranks_per_node", keys.resources.ranks_per_node, 1, "auto")
    _check_count(f"{path}: restarts", keys.restarts, 0)
    if invalid := next((name for name in keys.parameters if not PARAMETER.fullmatch(name)), None):
        raise JobError(f"{path}: parameters: invalid name {invalid!r}", "Names have no dashes before them: lr: 0.1")
    _check_count(f"{path}: retries", keys.retries, 0, "until done")
    try:
        minutes = parse_limit(keys.resources.time)
    except UsageError as error:
        raise JobError(f"{path}: resources.time: {error.message}", error.hint) from error
    if minutes == 0:
        raise JobError(f"{path}: resources.time must be at least one minute, not {keys.resources.time!r}")
    if keys.data and not keys.data.mount.startswith("/"):
        raise JobError(f"{path}: data.mount must be an absolute path, not {keys.data.mount!r}")


def _check_count(key: str, value: Count, least: int, *words: str) -> None:
    if value not in words and (isinstance(value, str) or value < least):
        raise JobError(f"{key} must be {' or '.join((f'an integer of at least {least}', *words))}, not {value!r}")


def _name(text: str) -> str:
    """`text` as a name that is safe in paths and in Slurm."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.") or "job"

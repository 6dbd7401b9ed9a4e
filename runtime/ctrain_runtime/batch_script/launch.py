"""The command of a script that starts a container: srun or mpirun before it, the engine's options, the program."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Optional

from ctrain_runtime.batch_script import slurm_options
from ctrain_runtime.batch_script.model import Launch, Remark
from ctrain_runtime.batch_script.variables import as_written, is_known
from ctrain_runtime.errors import UsageError
from ctrain_runtime.launchers import spawner_options
from ctrain_runtime.launchers.spawner_options import SPAWNERS
from ctrain_runtime.launchers.starters import SUBMITTERS, unwrapped
from ctrain_runtime.launchers.translate import IMAGE_OPTIONS
from ctrain_runtime.plan.mounts import parse_mount

_BINDING = ("depth", "d", "cpu-bind", "cc", "line-buffer")  # of PALS and aprun: ctrain starts and binds the ranks
_ENGINES = ("apptainer", "singularity")
_ACTIONS = ("exec", "run")
_MPIRUN = SPAWNERS["mpirun"]
_COUNTS = {spawner_options.RANKS: "ntasks", spawner_options.PER_NODE: "ntasks-per-node"}
_MOUNTS = ("-B", "--bind")
_DIRECTORY = ("--pwd", "--cwd")
_GPUS = ("--nv", "--rocm", "--nvccli")
_DECIDED = (  # flags of the engine whose work ctrain does, or whose opposite it guarantees
    *("-e", "--cleanenv", "-c", "--contain", "-C", "--containall", "--no-home", "-i", "--ipc", "-p", "--pid"),
    *("-q", "--quiet", "-s", "--silent", "--userns", "-u", "--no-init", "--compat"),
)


@dataclass
class _Reading:
    """What was read so far of a command."""

    line: int
    text: str
    directory: Optional[str]
    inside: str = ""  # the directory of the container where the program starts, if that is said
    sizes: dict[str, str] = field(default_factory=dict)
    mpi: str = ""
    mounts: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    gpus: bool = False
    remarks: list[Remark] = field(default_factory=list)

    def lose(self, what: str, reason: str) -> None:
        self.remarks.append(Remark(self.line, as_written(what), reason))

    def add_mounts(self, specs: str) -> None:
        """Add SRC[:DST[:OPTIONS]], with commas between several."""
        for spec in filter(None, specs.split(",")):
            self._add_mount(spec)

    def _add_mount(self, spec: str) -> None:
        if not is_known(spec):
            self.lose(f"bind {spec}", "a part of it is not known")
            return
        relative, colon, rest = spec.partition(":")
        source = join(self.directory, relative)
        if source is None:
            self.lose(f"bind {spec}", "the directory that it is relative to is not known")
            return
        try:
            parse_mount(f"{source}{colon}{rest}")
        except UsageError:
            self.lose(f"bind {spec}", "ctrain mounts SRC[:DST[:ro]] alone")
            return
        self.mounts.append(f"{source}:{rest or source}")  # both: --mount follows links where there is one path alone

    def add_variable(self, text: str) -> None:
        """Add NAME=VALUE."""
        name, _, value = text.partition("=")
        self.env[name] = value


def read_launch(
    line: int, text: str, words: Sequence[str], directory: Optional[str], env: dict[str, str], mounts: Sequence[str]
) -> Optional[Launch]:
    """The launch that a command is, None if it is another. `directory`, `env` and `mounts` are those of the script up
    to it."""
    words = unwrapped(list(words))
    name = PurePath(words[0]).name if words else ""
    starts_tasks = name in SUBMITTERS or SPAWNERS.get(name) is _MPIRUN
    engine = _engine(words)
    if engine is None and not starts_tasks:
        return None
    reading = _Reading(line, text, directory, env=dict(env))
    for specs in mounts:
        reading.add_mounts(specs)
    options = words[1 : len(words) if engine is None else engine] if starts_tasks else []
    wrapper = _read_srun(reading, options) if name == "srun" else _read_mpirun(reading, options)
    image, program = "", wrapper
    if engine is not None:
        image, program = _read_engine(reading, words[engine:])
        if wrapper:
            reading.lose(" ".join(wrapper), "it stood before the container")
    if not program:
        return None
    return Launch(
        line,
        text,
        name if starts_tasks else "",
        reading.sizes,
        reading.mpi,
        image,
        tuple(reading.mounts),
        reading.env,
        reading.directory,
        tuple(program),
        reading.gpus,
        tuple(reading.remarks),
    )


def _engine(words: Sequence[str]) -> Optional[int]:
    """Where the engine stands that starts a container."""
    for at, word in enumerate(words):
        if PurePath(word).name in _ENGINES:
            after = next((other for other in words[at + 1 :] if not other.startswith("-")), "")
            return at if after in _ACTIONS else None
    return None


def _read_srun(reading: _Reading, words: Sequence[str]) -> list[str]:
    """Read the options of srun; the words that follow them."""
    options, rest = slurm_options.read(words, slurm_options.SRUN_FLAGS)
    for name, value in options:
        if name == "mpi":
            reading.mpi = value
        elif name in slurm_options.SIZES and name != "time":
            reading.sizes[name] = value
        elif name == "gres" and value.startswith("gpu"):
            number = value.rpartition(":")[2]
            reading.sizes["gpus-per-node"] = number if number.isdigit() else "1"
        elif name == "export":
            for item in filter(lambda item: "=" in item, value.split(",")):
                reading.add_variable(item)
        elif name not in slurm_options.DECIDED:
            reading.lose(f"--{name} {value}".strip(), "an option of srun without an equivalent")
    if "chdir" in reading.sizes:
        reading.directory = join(reading.directory, reading.sizes.pop("chdir"))
    return rest


def _read_mpirun(reading: _Reading, words: Sequence[str]) -> list[str]:
    """Read the options of mpirun, mpiexec, aprun and their like; the words that follow them."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        role, count = _MPIRUN.role(option.lstrip("-").replace("_", "-"))
        if not role and not equals:  # of PALS, aprun ...: a word that is no option is its value
            count = int(bool(rest) and not rest[0].startswith("-") and _engine(rest) != 0)
        elif role == spawner_options.ENV and rest and "=" in rest[0]:
            count = 1
        values = [value] if equals else rest[:count]
        rest = rest if equals else rest[count:]
        _add_of_mpirun(reading, option, role, values)
    return rest


def _add_of_mpirun(reading: _Reading, option: str, role: str, values: list[str]) -> None:
    if role in _COUNTS:
        reading.sizes[_COUNTS[role]] = " ".join(values)
    elif role == spawner_options.ENV:
        if "=" in "=".join(values):
            reading.add_variable("=".join(values))
        elif values and values[0] not in reading.env:
            reading.lose(f"{option} {values[0]}", "its value is not in the script")
    elif role == spawner_options.MCA and values:
        reading.env[f"OMPI_MCA_{values[0]}"] = " ".join(values[1:])
    elif option.lstrip("-") in _BINDING:
        pass
    elif not role:
        reading.lose(" ".join([option, *values]), "an option without an equivalent")


def _read_engine(reading: _Reading, words: Sequence[str]) -> tuple[str, list[str]]:
    """Read the options of the engine; the image and the program."""
    rest = list(words[1:])
    action = ""
    while rest and (rest[0].startswith("-") or not action):
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("-"):
            action = option
        elif option in _GPUS:
            reading.gpus = True
        elif option not in _DECIDED:
            if not equals and IMAGE_OPTIONS.fullmatch(option):
                value = rest.pop(0) if rest else ""
            _add_of_engine(reading, option, value)
    image, *program = rest or [""]
    image = _absolute(reading, image)
    if reading.inside:  # at last: a bind may follow
        reading.directory = _on_host(reading, reading.inside)
    if action == "run":
        reading.lose(f"{PurePath(words[0]).name} run", "ctrain starts the command, not the image's %runscript")
    return image, program


def _add_of_engine(reading: _Reading, option: str, value: str) -> None:
    if option in _MOUNTS:
        reading.add_mounts(value)
    elif option == "--env":
        for item in value.split(",") if value.count("=") > 1 else [value]:
            reading.add_variable(item)
    elif option in _DIRECTORY:
        reading.inside = value
    else:
        reading.lose(f"{option} {value}".strip(), "an option of the engine without an equivalent")


def _on_host(reading: _Reading, directory: str) -> Optional[str]:
    """The directory of the host that is mounted at a path of the container."""
    for text in reversed(reading.mounts):
        mount = parse_mount(text)
        if directory == mount.target or directory.startswith(f"{mount.target.rstrip('/')}/"):
            return os.path.normpath(mount.source + directory[len(mount.target) :])
    return directory if is_known(directory) else None


def _absolute(reading: _Reading, image: str) -> str:
    """The path of an image's file; a reference, as docker://..., stays."""
    if "://" in image or not image or not is_known(image):
        return image
    return join(reading.directory, image) or image


def join(directory: Optional[str], path: str) -> Optional[str]:
    """`path`, relative to a directory; None if that is unknown."""
    if not is_known(path) or (directory is None and not path.startswith("/")):
        return None
    return os.path.normpath(os.path.join(directory or "/", path))  # noqa: PTH118  # of a text, not a file

"""The group of a sweep: a file beside its runs, which names all before the first is submitted. Format: docs/runs.md."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Optional

from ctrain_runtime.base import run_files
from ctrain_runtime.errors import CtrainError, DataError, UsageError
from ctrain_runtime.job import NAME
from ctrain_runtime.run import directory, record

SCHEMA = 1


@dataclass(frozen=True)
class Member:
    """A run of a group. `job` is its job's name for users, "" as long as it is not submitted."""

    run: str
    parameters: dict[str, str]
    job: str = ""


@dataclass(frozen=True)
class Group:
    """A sweep. `at_once`: how many of its runs may run at a time, None without a limit; `file` is where it is kept."""

    name: str
    created: str
    at_once: Optional[int]
    runs: tuple[Member, ...]
    schema: int = SCHEMA
    file: str = field(default="", compare=False)

    @property
    def parent(self) -> Path:
        return Path(self.file).parent

    def path(self, member: Member) -> Path:
        return self.parent / member.run

    @property
    def submitted(self) -> tuple[Path, ...]:
        """The directories of the runs that exist."""
        paths = (self.path(member) for member in self.runs)
        return tuple(path for path in paths if (path / run_files.PLAN).is_file())


def create(parent: Path, name: str, job: str, at_once: Optional[int], settings: Sequence[dict[str, str]]) -> Group:
    """A new group `name`, or of the job and the time, with a run for each combination; of a group that exists with the
    same combinations, what is not submitted yet goes on. Raises CtrainError."""
    if name and not NAME.fullmatch(name):
        raise UsageError(f"invalid --name {name!r}", "Use letters, digits, '.', '_' and '-'")
    if name == directory.LAST:
        raise UsageError(f"--name {name}: this word means the newest run", "Choose another --name")
    file = _file(parent, name or f"{job}-{time.strftime('%m%d-%H%M%S')}")
    number = 1
    while not name and file.exists():
        number += 1
        file = _file(parent, f"{job}-{time.strftime('%m%d-%H%M%S')}-{number}")
    if file.exists():
        known = load(file)
        if [member.parameters for member in known.runs] != list(settings):
            raise UsageError(f"sweep {name} exists, with other values", "Choose another --name")
        return replace(known, at_once=at_once)
    name = file.name[: -len(run_files.SWEEP_SUFFIX)]
    members = tuple(Member(f"{name}-{number}", each) for number, each in enumerate(settings, 1))
    group = Group(name, record.iso(time.time()), at_once, members, file=str(file))
    if taken := next((member.run for member in (*members, Member(name, {})) if (parent / member.run).exists()), None):
        raise UsageError(f"run {parent / taken} already exists", "Choose another --name")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        save(group)
    except OSError as error:
        raise CtrainError(f"cannot write {file}: {error.strerror}", "Choose another parent with --runs DIR") from error
    return group


def with_job(group: Group, member: Member, job: str) -> Group:
    """The group in which a member has a job, also in its file; on a full disk, only the run's own record has it."""
    runs = tuple(replace(each, job=job) if each.run == member.run else each for each in group.runs)
    changed = replace(group, runs=runs)
    with contextlib.suppress(OSError):
        save(changed)
    return changed


def save(group: Group) -> None:
    """Replace the group's file atomically. Raises OSError."""
    data = {key: value for key, value in asdict(group).items() if key != "file"}
    directory.write_json(Path(group.file), data)


def find(reference: str, *parents: Path) -> Optional[Group]:
    """The group of a name below one of `parents`; None without one. Raises CtrainError."""
    if not NAME.fullmatch(reference):
        return None
    names = (_file(parent, reference) for parent in parents)
    files = [file for file in names if os.path.isfile(file)]  # noqa: PTH113  # also of a name that is too long
    if len(files) > 1:
        where = ", ".join(str(file.parent) for file in files)
        raise DataError(f"sweep {reference!r} is in {where}", "Name the directory with --runs DIR")
    return load(files[0]) if files else None


def load(file: Path) -> Group:
    """Raises CtrainError."""
    data = directory.read_json(file)
    if data.get("schema") != SCHEMA:
        raise directory.unsupported(data.get("schema"), file, str(SCHEMA))
    return replace(directory.load_written(Group, data, file), file=str(file.resolve()))


def _file(parent: Path, name: str) -> Path:
    return parent / f"{name}{run_files.SWEEP_SUFFIX}"

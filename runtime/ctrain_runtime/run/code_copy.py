"""The copy of a job's directory that its run uses, so that an edit while it waits changes nothing.

What is no code stays where it is, and is mounted over the copy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from ctrain_runtime.base import run_files
from ctrain_runtime.base.text import format_size, pluralize
from ctrain_runtime.errors import JobError
from ctrain_runtime.plan.model import CodeCopy

IGNORE_FILE = ".ctrainignore"
STAYS = (".git", ".hg", ".svn", ".env", ".venv", "venv")  # histories, secrets, environments
_LITTER = ("__pycache__",)
MAX_BYTES, MAX_FILES = 100_000_000, 10_000
MAX_MOUNTS = 50


def survey(directory: Path) -> CodeCopy:
    """What of a job's directory is not copied. Raises JobError for a directory that is too large for a copy."""
    patterns, live, sizes = (*STAYS, *_ignored(directory / IGNORE_FILE)), list[str](), dict[str, int]()
    for count, (name, size) in enumerate(_walk(directory, "", patterns, live)):
        top = name.partition("/")[0]
        sizes[top] = sizes.get(top, 0) + size
        if count >= MAX_FILES:
            raise _too_large(directory, f"more than {MAX_FILES:,} files", sizes)
    total = sum(sizes.values())
    if total > MAX_BYTES:
        raise _too_large(directory, f"{format_size(total)} of files, more than {format_size(MAX_BYTES)}", sizes)
    if len(live) > MAX_MOUNTS:
        problem = f"{directory / IGNORE_FILE} keeps {pluralize(len(live), 'path')} out of the copy of the code"
        raise JobError(f"{problem}, more than {MAX_MOUNTS}", "Name the directories that hold them")
    return CodeCopy(str(directory), tuple(live))


def copy(code: CodeCopy, run: Path) -> None:
    """Copy the code into a run's directory, with the mount points of what stays. Raises OSError."""
    source, target = Path(code.source or code.directory), run / run_files.CODE

    def left_out(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder, name) for name in names}
        stays = {name for name, path in paths.items() if str(path.relative_to(source)) in code.live}
        return stays | {name for name, path in paths.items() if is_left_out(str(path))}

    shutil.copytree(source, target, symlinks=True, ignore=left_out)
    for name in code.live:
        point = target / name
        if (source / name).is_dir():
            point.mkdir(parents=True, exist_ok=True)
        else:
            point.parent.mkdir(parents=True, exist_ok=True)
            point.touch()
    if Path(code.directory) in run.parents:  # the run directory is mounted there
        (target / run.relative_to(code.directory)).mkdir(parents=True, exist_ok=True)


def _walk(directory: Path, below: str, patterns: tuple[str, ...], live: list[str]) -> Iterator[tuple[str, int]]:
    """The files that are copied, with their sizes; what stays is added to `live`. Raises JobError."""
    try:
        entries = sorted(os.scandir(directory / below), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(directory / below, error.strerror or str(error), directory) from error
    for entry in entries:
        name = f"{below}/{entry.name}".lstrip("/")
        if any(fnmatchcase(name if "/" in one else entry.name, one.lstrip("/")) for one in patterns):
            live.append(name)
        elif is_left_out(entry.path):
            continue
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(directory, name, patterns, live)
        elif entry.is_symlink():
            yield name, 0
        elif os.access(entry.path, os.R_OK):
            yield name, entry.stat().st_size
        else:
            raise _unreadable(directory / name, "Permission denied", directory)


def is_left_out(path: str) -> bool:
    """Whether a path is neither copied nor kept: byte code, the directory of a run, a socket, a pipe, a device."""
    # Called for many thousands of paths: each Path would take as long as the questions.
    name = os.path.basename(path)  # noqa: PTH119
    if name in _LITTER or os.path.isfile(f"{path}/{run_files.SUBMIT_LOCK}"):  # noqa: PTH113
        return True
    return not (os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH112,PTH113,PTH114


def _ignored(path: Path) -> list[str]:
    """The patterns of an ignore file; none without one. Raises JobError."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"cannot read {path}: {error}") from error
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    if any(pattern.startswith("!") for pattern in patterns):
        raise JobError(f"{path}: patterns with '!' are not supported", "Name only what stays out of the copy")
    return patterns


def _too_large(directory: Path, what: str, sizes: dict[str, int]) -> JobError:
    largest = max(sizes, key=lambda name: sizes[name])
    size = format_size(sizes[largest])
    hint = f"Name it in {directory / IGNORE_FILE}: then it is used where it is; or pass --live: then nothing is copied"
    return JobError(f"the code in {directory} cannot be copied: {what} (largest: {largest}, {size})", hint)


def _unreadable(path: Path, why: str, directory: Path) -> JobError:
    hint = f"Name it in {directory / IGNORE_FILE}, or pass --live"
    return JobError(f"the code in {directory} cannot be copied: {path}: {why}", hint)

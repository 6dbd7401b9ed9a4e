"""The files of sites: finds them, and reads them as checked layers.

The directory of `ctrain install`, /etc/ctrain and $XDG_CONFIG_HOME/ctrain (XDG Base Directory Specification; ~/.config)
have a file sites/NAME.yaml for each site that they define or change. A project has one file, ctrain.yaml, for whichever
site its runs use.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import config, strict_yaml
from ctrain_runtime.base.paths import INSTALLED_SITES, expand_home, installation_prefix
from ctrain_runtime.errors import ConfigError, SiteError
from ctrain_runtime.site.layers import TRUST_KEYS, Layer, Level

BUILT_IN_DIR = Path(__file__).parents[1] / "sites"
SYSTEM_DIR = Path("/etc/ctrain/sites")
PROJECT_FILE = "ctrain.yaml"

LEVEL_NAMES = {
    Level.BUILT_IN: "built-in",
    Level.INSTALLATION: "installation",
    Level.SYSTEM: "system",
    Level.USER: "user",
    Level.PROJECT: "project",
}
# A site is defined by its own file, and must not trust what a repository that was just cloned names, nor start it, nor
# send code there: even a dry run asks the engine for its version.
NOT_IN_PROJECTS = ("name", "description", "extends", "detect", "scheduler", "engine", "notify", "login", *TRUST_KEYS)
_REQUIRED = {"name": "-", "scheduler": "-"}  # stand-ins, so that a file with some keys only can be checked


@dataclass(frozen=True)
class ProjectFile:
    """A project's ctrain.yaml. `site` is the site that it selects, "" if it leaves that to detection."""

    path: Path
    site: str
    layer: Layer


def site_dirs() -> Mapping[Level, Path]:
    """The directories of site files, lowest first; not all of them need to exist."""
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    if not Path(config_home).is_absolute():  # as the specification demands
        config_home = str(expand_home("~") / ".config")
    prefix = installation_prefix()
    return {
        Level.BUILT_IN: BUILT_IN_DIR,
        **({Level.INSTALLATION: prefix / INSTALLED_SITES} if prefix else {}),
        Level.SYSTEM: SYSTEM_DIR,
        Level.USER: Path(config_home, "ctrain", "sites"),
    }


def site_paths() -> Mapping[str, Mapping[Level, Path]]:
    """The files of each site, lowest first. Raises ConfigError if a directory cannot be read."""
    paths: dict[str, dict[Level, Path]] = {}
    for level, directory in site_dirs().items():
        for name in _list_names(directory):
            paths.setdefault(name, {})[level] = directory / f"{name}.yaml"
    return paths


def _list_names(directory: Path) -> list[str]:
    try:
        files = [path.name for path in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:  # not skipped: its requirements would be lost silently
        raise ConfigError(f"cannot read {directory}: {error.strerror}") from error
    return sorted(file[: -len(".yaml")] for file in files if file.endswith(".yaml") and not file.startswith("."))


def read_site_file(path: Path, level: Level, kind: type) -> Layer:
    """The layer in a site file. `kind` is the dataclass whose fields are the known keys. Raises ConfigError."""
    data = _read_checked(path, kind)
    if level != Level.FILE and data.get("name", path.stem) != path.stem:
        raise ConfigError(f"{path}: name must be {path.stem!r}, the file's name, not {data['name']!r}")
    return Layer(level, _source(path, level), {"name": path.stem, **data}, str(path))


def save_key(site: str, key: str, entries: Mapping[str, Any]) -> Path:
    """Set entries of a mapping in the user's own file of a site, and leave its other lines as they are; its path.

    Raises ConfigError for an invalid file, OSError if it cannot be written.
    """
    path = (site_dirs()[Level.USER] / f"{site}.yaml").resolve()
    lines: list[str] = []
    old: dict[str, Any] = {}
    begin = 0
    if path.exists():
        lines, begin = path.read_text(encoding="utf-8").splitlines(), strict_yaml.key_lines(path).get(key, 0)
        old = strict_yaml.read(path).get(key) or {}
    values = ", ".join(f"{name}: {value}" for name, value in {**old, **entries}.items())
    end = begin
    while begin and end < len(lines) and lines[end][:1] in ("", " ", "\t"):  # the rest of the old value
        end += 1
    lines[max(0, begin - 1) if begin else len(lines) : end if begin else len(lines)] = [f"{key}: {{{values}}}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.replace(path)
    return path


def read_project_file(kind: type) -> Optional[ProjectFile]:
    """The file ctrain.yaml that applies in the current directory. Raises ConfigError, or SiteError: find_project_file.

    It can neither define a site nor change which keys a site trusts.
    """
    path = find_project_file()
    if path is None:
        return None
    data = _read_checked(path, kind, more=("site",))
    name = data.pop("site", None) or ""
    if not isinstance(name, str) or "/" in name:
        raise ConfigError(f"{_locate(path, 'site')}: site must be the name of a site, not {name!r}")
    for key in NOT_IN_PROJECTS:
        if key in data:
            hint = "Remove the key, or set it in the site's own file; see: ctrain help sites"
            raise ConfigError(f"{_locate(path, key)}: {key} cannot be set by a project", hint)
    return ProjectFile(path, name, Layer(Level.PROJECT, _source(path, Level.PROJECT), data))


def find_project_file() -> Optional[Path]:
    """The ctrain.yaml of the current directory, or of its nearest parent up to the repository's root or the home.

    World-writable parents (/tmp, often /scratch) are not searched. Raises SiteError if the current directory is
    world-writable and its ctrain.yaml belongs to another user.
    """
    try:
        start = Path.cwd()
    except FileNotFoundError:  # it was deleted
        return None
    candidates = _project_candidates(start)
    path = next(filter(os.path.isfile, candidates), None)  # Path.is_file raises where a directory cannot be searched
    if path and is_world_writable(path.parent) and path.stat().st_uid not in (0, os.getuid()):
        raise SiteError(
            f"{path} belongs to another user, in a world-writable directory",
            "Run ctrain in another directory",
        )
    return path


def _project_candidates(start: Path) -> Iterator[Path]:
    home = expand_home("~")
    directories = [start, *start.parents]
    last = next((path for path in directories if path == home or os.access(path / ".git", os.F_OK)), start)
    for directory in directories[: directories.index(last) + 1]:
        if directory == start or not is_world_writable(directory):
            yield directory / PROJECT_FILE


def is_world_writable(path: Path) -> bool:
    """Whether a file or directory is world-writable."""
    with contextlib.suppress(OSError):  # without access to its status, it cannot be read either
        return bool(path.stat().st_mode & stat.S_IWOTH)
    return False


def _read_checked(path: Path, kind: type, more: Collection[str] = ()) -> dict[str, Any]:
    """The keys of a file, all of them valid (fields of `kind`, or in `more`) and of the right type."""
    if not path.is_file():
        raise ConfigError(f"{path} is not a regular file")
    data = strict_yaml.read(path)
    try:
        _check(data, kind, more, str(path))
    except ConfigError:
        for key, value in data.items():  # once more key by key, to name the line
            _check({key: value}, kind, more, _locate(path, key))
        raise
    return data


def _check(data: Mapping[str, Any], kind: type, more: Collection[str], where: str) -> None:
    known = {field.name for field in fields(kind)} | set(more)
    given = {key: _drop_nulls(value) for key, value in data.items() if value is not None or key not in known}
    config.load(kind, {**_REQUIRED, **{key: value for key, value in given.items() if key not in more}}, where)
    for path, number in _numbers(given):
        may_be_zero = path.startswith("expected_bandwidth.") or path.endswith((".cpus", ".gpus", ".nodes"))
        if number < 0 and may_be_zero:
            raise ConfigError(f"{where}: {path} must not be negative, but is {number}")
        if number < 1 and not may_be_zero:
            raise ConfigError(f"{where}: {path} must be a positive integer, not {number}")


def _numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, int]]:
    """The whole numbers of keys, and of the entries of mappings, each with its path."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{key}.")
        elif type(value) is int:
            yield f"{above}{key}", value


def _drop_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def _locate(path: Path, key: Any) -> str:
    line = strict_yaml.key_lines(path).get(key)
    return f"{path}, line {line}" if line else str(path)


def _source(path: Path, level: Level) -> str:
    return f"{path} ({LEVEL_NAMES[level]})" if level in LEVEL_NAMES else str(path)

"""A cluster's profile. Everything about a site is data: sites/*.yaml here, in /etc/ctrain or in ~/.config/ctrain."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ctrain_runtime import command, config, strict_yaml
from ctrain_runtime.errors import ConfigError, SiteError

FOLDERS = (Path(__file__).parent / "sites", Path("/etc/ctrain/sites"), Path("~/.config/ctrain/sites"))


@dataclass(frozen=True)
class Detect:
    """What marks a machine as this site: all of these programs on PATH and all of these paths."""

    commands: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Site:
    """The keys of a site file: docs/sites.md."""

    name: str
    scheduler: Literal["slurm", "local"]
    description: str = ""
    detect: Detect = field(default_factory=Detect)
    stores: tuple[str, ...] = ()
    require_signature: bool = False
    trusted_keys: tuple[str, ...] = ()
    runs: str = "ctrain-runs"  # folder of run directories; on a cluster, one that all nodes share
    partition: str = ""
    comment: str = ""
    submit: tuple[str, ...] = ()  # further options of sbatch, one a list item
    mpi: tuple[str, ...] = ("pmix", "pmi2")  # in order of preference
    datasets: dict[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A site and why it was chosen."""

    site: Site
    why: str


def choose(wanted: str = "") -> Choice:
    """The site that `wanted` names (or whose file it is), else the one that this machine shows.

    Of the sites that fit, the one with the most marks wins. Raises SiteError.
    """
    if wanted:
        return Choice(_load(Path(wanted)) if "/" in wanted else _named(wanted), "asked for")
    fitting = [site for site in _all().values() if _fits(site.detect)]
    best = max(fitting, key=lambda site: len(site.detect.commands) + len(site.detect.paths))
    marks = ", ".join((*best.detect.commands, *best.detect.paths)) or "no scheduler here"
    return Choice(best, f"detected: {marks}")


def expand(text: str, where: str) -> str:
    """`text` with ~ and $VARIABLES replaced. Raises ConfigError for a variable that is not set."""
    try:
        return str(Path(string.Template(text).substitute(os.environ)).expanduser())
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{where}: {text!r} names a variable that is not set: {error}") from error


def _named(name: str) -> Site:
    sites = _all()
    if name not in sites:
        raise SiteError(f"unknown site {name!r}", f"Sites: {', '.join(sorted(sites))}; or the path of a site file")
    return sites[name]


def names() -> list[str]:
    """The sites that can be named."""
    return sorted(_all())


def _all() -> dict[str, Site]:
    """Every site by name; a later folder (the admin's, the user's) replaces a site of the same name."""
    return {site.name: site for site in map(_load, _files())}


def _files() -> Iterable[Path]:
    for folder in FOLDERS:
        yield from sorted(folder.expanduser().glob("*.yaml"))


def _load(path: Path) -> Site:
    if not path.is_file():
        raise SiteError(f"there is no site file {path}")
    return config.load(Site, strict_yaml.read(path), str(path))


def _fits(detect: Detect) -> bool:
    return all(map(command.which, detect.commands)) and all(Path(path).exists() for path in detect.paths)

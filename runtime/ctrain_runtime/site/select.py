"""Which site applies here, and its values from all layers: docs/sites.md."""

from __future__ import annotations

import contextlib
import os
import pwd
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Optional

from ctrain_runtime.base import command, config, strict_yaml
from ctrain_runtime.base.paths import INSTALLED_STORE, installation_prefix, store_path
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import ConfigError, SiteError
from ctrain_runtime.site import files
from ctrain_runtime.site.files import ProjectFile
from ctrain_runtime.site.layers import Layer, Level, check_trust_keys, merge
from ctrain_runtime.site.model import Site

FALLBACK = "local"
DEFAULT = "default"
_NOT_INHERITED = ("name", "description", "extends")
_VARIABLES = {"CTRAIN_STORE": "stores", "CTRAIN_RUNS": "runs"}
_OPTIONS = {"store": "stores", "runs": "runs", "partition": "partition", "comment": "comment", "notify": "notify"}


@dataclass(frozen=True)
class SelectedSite:
    """The selected site and the `reason`. `explicit`: it was named, not detected.

    `sources` has the source of each key (a file and its layer, a variable, an option, "default"), and as KEY.ENTRY
    that of each entry of a mapping. `layers` are what it was made from, lowest first.
    """

    site: Site
    reason: str
    explicit: bool
    sources: Mapping[str, str]
    layers: tuple[Layer, ...] = ()

    def store_dirs(self) -> tuple[str, ...]:
        """The directories of the site's stores. Raises ConfigError, UsageError."""
        where = f"{self.sources['stores']}: stores"
        return tuple(expand(str(store_path(text)), where) for text in self.site.stores)


def select_site(name: str = "", options: Optional[Mapping[str, object]] = None) -> SelectedSite:
    """The site that applies here, with the values of all layers.

    `name` (of a site, or the path of a site file) wins over CTRAIN_SITE, that over the project's ctrain.yaml, and that
    over detection. Of `options`, the values of the command line by name, those that override a site's key are used:
    store, runs, partition, comment, notify. Raises SiteError or ConfigError.
    """
    project = files.read_project_file(Site)
    layers, reason = _choose(name, project)
    explicit = bool(reason)
    if not explicit:
        layers, reason = _detect()
    above = [project.layer] if project else []
    layers = [*_installation_layers(), *layers, *above, *_environment_layers(), *_option_layers(options or {})]
    site, sources = _build(layers)
    return SelectedSite(site, reason, explicit, sources, tuple(layers))


def site_names() -> list[str]:
    """The sites that can be named."""
    return sorted(files.site_paths())


def expand(text: str, where: str) -> str:
    """`text` with ~ and $VARIABLES replaced; $USER is the caller, even if it is not set. Raises ConfigError if another
    variable or a home does not exist."""
    known = {name: value for name, value in os.environ.items() if value}  # an empty one would leave /scratch//runs
    with contextlib.suppress(KeyError):  # no account here
        known.setdefault("USER", pwd.getpwuid(os.getuid()).pw_name)
    try:
        return str(Path(string.Template(text).substitute(known)).expanduser())
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{where}: variable not set in {text!r}: {error}") from error
    except RuntimeError as error:  # of expanduser
        raise ConfigError(f"{where}: home directory not found: {text!r}") from error


def load_site(name: str) -> tuple[Site, Mapping[str, str]]:
    """A site by its own files and those that it extends, and the source of each key. Raises as select_site."""
    return _build(_load_layers(name))


def login_of(name: str = "") -> str:
    """The login node of a site that is named, as by CTRAIN_SITE, and is not this machine's; "" without one. Raises
    SiteError or ConfigError."""
    name = name or os.environ.get("CTRAIN_SITE", "")
    values = merge(_load_layers(name)).values if name else {}
    return "" if _match(values.get("detect")) else str(values.get("login") or "")


def _choose(name: str, project: Optional[ProjectFile]) -> tuple[list[Layer], str]:
    """The layers of a site that is named, and the reason; both empty if none is."""
    if name:
        return _load_layers(name), "requested"
    if variable := os.environ.get("CTRAIN_SITE", ""):
        return _load_layers(variable, "CTRAIN_SITE: "), "requested by CTRAIN_SITE"
    if project and project.site:
        layers = _load_layers(project.site, f"{project.path}: site: ")
        _check_not_weaker(project, layers)
        return layers, f"requested by {project.path}"
    return [], ""


def _check_not_weaker(project: ProjectFile, layers: Sequence[Layer]) -> None:
    """Raise SiteError if a repository selects a site that trusts more images than this machine's own site."""
    own, _ = _build(_detect()[0])
    other, _ = _build(layers)
    hint = f"Remove the key, or select the site yourself: --site {other.name}"
    if own.require_signature and (True, own.trusted_keys) != (other.require_signature, other.trusted_keys):
        problem = f"site {other.name} does not require the signatures that site {own.name} requires"
        raise SiteError(f"{project.path}: {problem}", hint)
    if own.images == "store" != other.images:
        problem = f"site {other.name} allows images that site {own.name} does not allow"
        raise SiteError(f"{project.path}: {problem}", hint)


def others_detected(site: Site) -> list[str]:
    """The names of the sites that match here as `site` does, and have another scheduler; none for a site that only its
    name selects. Raises SiteError or ConfigError."""
    schedulers = {name: merge(layers).values.get("scheduler") for name, layers, _ in _matching()}
    return [name for name in schedulers if site.name in schedulers and schedulers[name] != site.scheduler]


def _detect() -> tuple[list[Layer], str]:
    """The layers of the site whose criteria all match; of several, the one with the most criteria."""
    _, best, criteria = max(_matching(), key=lambda match: len(match[2]), default=("", [], ()))
    return best or _load_layers(FALLBACK), f"detected: {', '.join(criteria) or 'no scheduler here'}"


def _matching() -> Iterator[tuple[str, list[Layer], tuple[str, ...]]]:
    """The name, the layers and the criteria of each site whose criteria all match here.

    Only sites with criteria of their own can be detected; where these do not match, parents are not read.
    """
    for name, paths in files.site_paths().items():
        if list(paths) == [Level.BUILT_IN] and not _match(strict_yaml.read_key(paths[Level.BUILT_IN], "detect")):
            continue  # unread: every command asks all sites, and YAML is slow
        own = _read_layers(paths)
        if not _match(merge(own).values.get("detect")):
            continue
        layers = [*_inherit(own, (name,)), *own]
        if criteria := _match(merge(layers).values.get("detect")):
            yield name, layers, criteria


def _match(detect: Optional[Mapping[str, Any]]) -> tuple[str, ...]:
    """The criteria of a site if all of them match, else none."""
    detect = detect or {}
    commands, paths = detect.get("commands", ()), detect.get("paths", ())
    return (*commands, *paths) if all(map(command.which, commands)) and all(map(os.path.exists, paths)) else ()


def _load_layers(name: str, origin: str = "", seen: tuple[str, ...] = ()) -> list[Layer]:
    """The layers of a site, or of the site file at a path: those that it extends, then its own.

    Raises SiteError, which begins with `origin`: the place that names the site.
    """
    if "/" in name:
        if not Path(name).exists():
            raise SiteError(f"{origin}site file not found: {name}")
        own = _read_layers({Level.FILE: Path(name)})
    else:
        own, seen = _read_layers(_find_paths(name, origin)), (*seen, name)
    return [*_inherit(own, seen), *own]


def _find_paths(name: str, origin: str) -> Mapping[Level, Path]:
    paths = files.site_paths()
    if name not in paths:
        known = f"Sites: {', '.join(sorted(paths))}; or the path of a site file"
        raise SiteError(f"{origin}unknown site {name!r}", suggest(name, paths) or known)
    return paths[name]


def _read_layers(paths: Mapping[Level, Path]) -> list[Layer]:
    return [files.read_site_file(path, level, Site) for level, path in paths.items()]


def _inherit(own: Sequence[Layer], seen: tuple[str, ...]) -> list[Layer]:
    """The layers of a site's parent, without keys that are not inherited.

    Criteria are inherited only by a site that adds some: else it would match whenever its parent does.
    """
    merged = merge(own)
    parent = merged.values.get("extends", "")
    if not parent:
        return []
    where = merged.sources["extends"]
    if parent in seen:
        raise SiteError(f"{where}: extends is a cycle: {' -> '.join((*seen, parent))}", "Remove one `extends`")
    _find_paths(parent, f"{where}: extends: ")  # only a name, not a path
    dropped = _NOT_INHERITED if "detect" in merged.values else (*_NOT_INHERITED, "detect")
    return [
        replace(layer, values={key: value for key, value in layer.values.items() if key not in dropped})
        for layer in _load_layers(parent, seen=seen)
    ]


def _installation_layers() -> list[Layer]:
    """The store beside this ctrain, for sites whose files name none."""
    prefix = installation_prefix()
    store = prefix and prefix / INSTALLED_STORE
    if not store or not store.is_dir():
        return []
    return [Layer(Level.INSTALLATION, f"{prefix} (installation)", _as_values("stores", str(store)))]


def _environment_layers() -> list[Layer]:
    set_here = {variable: os.environ[variable] for variable in _VARIABLES if os.environ.get(variable)}
    return [Layer(Level.ENVIRONMENT, name, _as_values(_VARIABLES[name], value)) for name, value in set_here.items()]


def _option_layers(options: Mapping[str, object]) -> list[Layer]:
    given = {option: options[option] for option in _OPTIONS if options.get(option)}
    return [Layer(Level.OPTION, f"--{name}", _as_values(_OPTIONS[name], value)) for name, value in given.items()]


def _as_values(key: str, value: object) -> Mapping[str, Any]:
    return {key: [value] if key == "stores" else value}  # one store, instead of all that are configured


def _build(layers: Sequence[Layer]) -> tuple[Site, Mapping[str, str]]:
    """The site of `layers`, lowest first, and the source of each key."""
    check_trust_keys(layers)
    merged = merge(layers)
    if "scheduler" not in merged.values:
        hint = "Set `scheduler`, or `extends: SITE`"
        raise SiteError(f"{merged.sources['name']}: site {merged.values['name']} has no scheduler", hint)
    site = config.load(Site, merged.values, f"site {merged.values['name']}")
    return site, {**{key.name: DEFAULT for key in fields(Site)}, **merged.sources}

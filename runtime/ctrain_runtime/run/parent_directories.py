"""The parent directories of a user's runs: the site's, and all others to which runs were submitted.

Each that was used has a symbolic link in $XDG_STATE_HOME/ctrain/runs (XDG Base Directory Specification; the default is
~/.local/state): creating one is atomic on every file system. Without a writable home, only the site's is known.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.site.model import Site
from ctrain_runtime.site.select import expand, select_site


def of_site(site: Site) -> Path:
    """The site's. Raises ConfigError."""
    return Path(expand(site.runs, f"site {site.name}: runs")).resolve()


def remember(parent: Path) -> None:
    """Keep the parent directory of a run, so that the run is found from anywhere."""
    links = _links()
    if links.is_absolute():  # else there is no home directory
        name = hashlib.sha256(os.fsencode(parent)).hexdigest()[:12]
        with contextlib.suppress(OSError):  # it is known already, or the home cannot be written to: the run goes on
            links.mkdir(parents=True, exist_ok=True)
            (links / name).symlink_to(parent)


def with_remembered(own: Path) -> tuple[Path, ...]:
    """`own`, then all others that exist here."""
    try:
        targets = sorted(link.readlink() for link in _links().iterdir() if link.is_symlink())
    except OSError:
        targets = []
    return (own, *(target for target in targets if target != own and target.is_dir()))


def searched(site: str, runs: str) -> tuple[Path, ...]:
    """Where runs are looked for, by the values of --site and --runs: in the latter alone, else in all parent
    directories of the caller's. Raises SiteError, ConfigError."""
    own = of_site(select_site(site, {"runs": runs}).site)
    return (own,) if runs else with_remembered(own)


def _links() -> Path:
    return expand_home(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "ctrain/runs"

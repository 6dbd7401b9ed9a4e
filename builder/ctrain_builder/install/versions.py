"""Adds a version to a prefix, and makes one the current one."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable

from ctrain_builder.files import atomic
from ctrain_builder.install import environment, modulefiles
from ctrain_builder.install.prefix import Installation, Prefix, changing, complete, make_current, make_directory
from ctrain_builder.install.source import Source
from ctrain_builder.store.init import init_store
from ctrain_runtime.base import command
from ctrain_runtime.errors import CtrainError, UsageError

Say = Callable[[str], None]
# The settings of users' own Python, which their modules and shells set, are not for ctrain's.
_START = '#!/bin/sh\nexec {0}/venv/bin/python -I {0}/venv/bin/ctrain "$@"\n'
_COMPLETION = {"bash": "bash-completion/completions/ctrain", "zsh": "zsh/site-functions/_ctrain"}


def install(prefix: Prefix, source: Source, extras: str, python: str, say: Say) -> bool:
    """Add a version; the first becomes the current one. False if it is complete already: then it is left as it is."""
    with changing(prefix, say):
        prefix.sites.mkdir(exist_ok=True)
        init_store(prefix.store)
        installed = {installation.version: installation for installation in prefix.installations()}
        is_new = source.version not in installed
        if not is_new:
            _check_extras(prefix, installed[source.version], extras)
        else:
            say(f"installing ctrain {source.version} to {prefix.version(source.version)}")
            _add(prefix, source, extras, python)
        if not prefix.current_version():
            make_current(prefix, source.version)
        modulefiles.write(prefix)
    return is_new


def _check_extras(prefix: Prefix, installation: Installation, extras: str) -> None:
    """Raise UsageError if a complete version, which never changes, lacks packages that are asked for."""
    missing = {name.strip() for name in extras.split(",") if name.strip()} - set(installation.extras)
    if missing:
        what = f"ctrain {installation.version} in {prefix.root} is without [{','.join(sorted(missing))}]"
        again = f"rm -r {prefix.version(installation.version)}"
        raise UsageError(f"{what}, and a complete version never changes", f"If no program uses it: {again}; then retry")


def switch(prefix: Prefix, version: str, say: Say) -> None:
    """Make a complete version the current one. Raises UsageError for another."""
    known = [installation.version for installation in prefix.installations()]
    if version not in known:
        hint = f"Installed: {', '.join(known) or 'none'}"
        raise UsageError(f"ctrain {version} is not installed in {prefix.root}", hint)
    with changing(prefix, say):
        make_current(prefix, version)
        modulefiles.write(prefix)


def _add(prefix: Prefix, source: Source, extras: str, python: str) -> None:
    """In place, since Python environments cannot be moved: `complete` is what makes it count."""
    path = make_directory(prefix, source.version)
    try:
        environment.make(path / "venv", python, source.requirement(extras))
        start = path / "bin/ctrain"
        start.parent.mkdir()
        atomic.write_text(start, _START.format(path), 0o755)
        banner = command.run([str(start), "--version"]).stdout.partition("\n")[0]
        if banner != f"ctrain {source.version}":
            raise CtrainError(
                f"what pip has installed says {banner!r}, not ctrain {source.version}", "Pass --wheel FILE"
            )
        for shell, name in _COMPLETION.items():
            (path / "share" / name).parent.mkdir(parents=True)
            atomic.write_text(path / "share" / name, command.run([str(start), "completion", shell]).stdout)
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        complete(path, Installation(source.version, now, source.requirement(extras)))
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise

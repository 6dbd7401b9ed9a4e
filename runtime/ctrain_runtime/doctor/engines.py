"""Checks the container engine: whether it works, and whether this user may start and build containers with it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from ctrain_runtime.base import command
from ctrain_runtime.base.text import user_name
from ctrain_runtime.doctor import Finding
from ctrain_runtime.engines.apptainer import Engine, builds
from ctrain_runtime.errors import CtrainError, EngineError
from ctrain_runtime.run import site_engine
from ctrain_runtime.site.model import Site

_FUSE = Path("/dev/fuse")
_SUBORDINATE_IDS = (Path("/etc/subuid"), Path("/etc/subgid"))


def check_engine(site: Site) -> Iterator[Finding]:
    """Whether the engine of the site works here, and what it needs for this user."""
    try:
        engine, _ = site_engine.find(site)
    except EngineError as error:
        yield Finding("engine", "fail", error.message, error.hint)
        return
    text = f"{engine.name} {engine.version} ({engine.path})"
    if not command.which(engine.path):
        yield Finding("engine", "ok", f"{text}, on compute nodes only")
        return
    built, config = _settings(engine)
    set_uid = _is_set_uid(engine, built, config)
    yield Finding("engine", "ok", f"{text}, {'set-uid root' if set_uid else 'user namespaces'}")
    if not set_uid:
        yield _check_namespaces()
        yield _check_fuse()
    yield from _check_singularity(set_uid, config) if not builds(engine) else [_check_subordinate_ids()]


def _settings(engine: Engine) -> tuple[dict[str, str], str]:
    """With what it was built, and its configuration; nothing of an engine that does not tell."""
    try:
        settings = command.run([engine.path, "buildcfg"]).stdout
    except CtrainError:  # an engine without this command
        return {}, ""
    built = dict(line.partition("=")[::2] for line in settings.splitlines())
    return built, _read(Path(built.get(f"{engine.name.upper()}_CONF_FILE", "")))


def _forbids(config: str, directive: str) -> bool:
    return bool(re.search(rf"(?m)^\s*{directive}\s*=\s*no\b", config))


def _is_set_uid(engine: Engine, built: dict[str, str], config: str) -> bool:
    """Whether its starter is set-uid root, which packages may leave out, and is not forbidden in its configuration."""
    if _forbids(config, "allow setuid"):
        return False
    starter = Path("/", built.get("LIBEXECDIR", ""), engine.name, "bin/starter-suid")
    try:
        return bool(starter.stat().st_mode & stat.S_ISUID)
    except OSError:
        return False


def _check_singularity(set_uid: bool, config: str) -> Iterator[Finding]:
    """Where it mounts images by FUSE, as in user namespaces, which ctrain asks for as root, it mounts only the first
    file system of an image and ignores its overlays; other files it refuses (seen with SingularityCE 4.5.1)."""
    yield Finding("builds", "warn", "it runs images and builds none", "To build, install Apptainer beside it")
    reasons = {
        "without set-uid root": not set_uid,
        "for root": os.geteuid() == 0,
        "with `allow kernel squashfs = no`": _forbids(config, "allow kernel squashfs"),
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    if why:
        hint = "Use Apptainer, or flat images and data in directories; what Singularity needs: ctrain help engines"
        yield Finding("layers", "warn", f"{why}, Singularity mounts neither layers nor SquashFS data sets", hint)


def _check_namespaces() -> Finding:
    """By trying: several settings forbid them (sysctl user.max_user_namespaces, AppArmor, seccomp of a container)."""
    try:
        command.run(["unshare", "--user", "--map-root-user", "true"])
    except CtrainError as error:
        hint = "Ask the administrators to run: sysctl -w user.max_user_namespaces=15000, or for a set-uid installation"
        return Finding("namespaces", "fail", f"no user namespaces for this user: {error.message}", hint)
    return Finding("namespaces", "ok", "user namespaces work")


def _check_fuse() -> Finding:
    """Without set-uid root, images are mounted by FUSE (Apptainer's documentation, "User Namespaces & Fakeroot")."""
    if os.access(_FUSE, os.R_OK | os.W_OK):
        return Finding("fuse", "ok", str(_FUSE))
    problem = "not accessible to this user" if _FUSE.exists() else "not found"
    hint = "Ask the administrators to run: modprobe fuse && chmod 666 /dev/fuse"
    return Finding("fuse", "fail", f"{_FUSE}: {problem}; images cannot be mounted", hint)


def _check_subordinate_ids() -> Finding:
    user = user_name(os.getuid())
    owner = re.compile(rf"(?m)^({re.escape(user)}|{os.getuid()}):")
    missing = [str(path) for path in _SUBORDINATE_IDS if not owner.search(_read(path))]
    if not missing:
        return Finding("subuid", "ok", f"subordinate IDs for {user}")
    hint = f"To build, run as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
    return Finding("subuid", "warn", f"{' and '.join(missing)}: no range for {user}; only builds need one", hint)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

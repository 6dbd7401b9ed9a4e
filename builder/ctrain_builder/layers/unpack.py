"""Lets the engine unpack an image, in a container that shows it little of the host, all of that read-only.

The engine writes an image's metadata through the links that the image has in their places (seen with Apptainer 1.4.5),
with the rights of the user who builds. In this container such a link leads nowhere, or to what can't be written.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import without_owners
from ctrain_builder.layers.container import Container
from ctrain_runtime.base import file_systems

_WORK = "/unpack"
_HEADER, _ROOT = "header.def", "root"
# The engine, programs and libraries that it uses, certificates, names of hosts and users
_READ = ("/bin", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/var/lib/ca-certificates")
_MOUNT_POINTS = ("dev", "proc", "sys", "tmp", "var/tmp")


def unpack(container: Container, header: str, source: str, root: Path, log: Path, epoch: int) -> None:
    """Make the directory `root` of the image that `header`, the start of a definition, names; `source` is its `From:`.

    `epoch`, in seconds since 1970, is what the engine takes for the present. Raises CommandFailed.
    """
    engine, outside = container.engine, container.environment()
    built = dict(line.partition("=")[::2] for line in container.output([engine.path, "buildcfg"]).splitlines())
    rootfs = container.work / "unpack-rootfs"
    for name in (*_MOUNT_POINTS, built.get("SESSIONDIR", "").lstrip("/")):  # the engine inside mounts, too
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    work = container.work / "unpack"
    work.mkdir()
    (work / _HEADER).write_text(header, encoding="utf-8")
    cache = Path("/", _setting(outside, "CACHEDIR"))
    cache.mkdir(parents=True, exist_ok=True)
    hidden = f"/{secrets.token_hex(16)}"  # the cache is writable, so that no image may know where it is
    home, family = Path(outside.get("HOME", "/")), engine.name.upper()
    own = {
        f"{family}_CACHEDIR": hidden,
        f"{family}_TMPDIR": _WORK,
        f"{family}_CONFIGDIR": _setting(outside, "CONFIGDIR") or str(home / f".{engine.name}"),
        "DOCKER_CONFIG": outside.get("DOCKER_CONFIG", str(home / ".docker")),
        "SOURCE_DATE_EPOCH": str(epoch),
    }
    logins = own[f"{family}_CONFIGDIR"], own["DOCKER_CONFIG"], _setting(outside, "AUTH_FILE")
    certificates = outside.get("SSL_CERT_FILE", ""), outside.get("SSL_CERT_DIR", "")
    installed = built.get("PREFIX", ""), built.get("SYSCONFDIR", ""), str(Path(engine.path).parent.parent)
    sources = source, source.rpartition(":")[0]  # an archive is PATH:TAG
    read = [*_READ, os.path.realpath("/etc/resolv.conf"), *installed, *logins, *certificates, *sources]
    binds = [*(f"{path}:{path}:ro" for path in _with_mounts(read)), f"{work}:{_WORK}", f"{cache}:{hidden}"]
    argv = container.argv("exec", rootfs, binds=binds, as_root=True, is_engine=True)
    argv += [engine.path, "build", "--sandbox", f"{_WORK}/{_ROOT}", f"{_WORK}/{_HEADER}"]
    inside = {f"{family}ENV_{name}": value for name, value in {**outside, **own}.items() if name != "HOME"}
    if container.root:
        argv = [sys.executable, without_owners.__file__, *argv]
    container.run(argv, log, variables=inside)
    (work / _ROOT).rename(root)
    Tree(root).let_owner_read()


def _setting(outside: Mapping[str, str], name: str) -> str:
    """A variable of the engine's; "" if it isn't set."""
    return outside.get(f"APPTAINER_{name}") or outside.get(f"SINGULARITY_{name}") or ""


def _with_mounts(paths: Iterable[str]) -> Iterator[str]:
    """Those of `paths` that are there, once, each with the mounts below it: a bind's `ro` does not reach these."""
    existing = (path for path in paths if path.startswith("/") and path != "/" and Path(path).exists())
    for path in dict.fromkeys(existing):
        yield path
        yield from file_systems.points_below(Path(path))

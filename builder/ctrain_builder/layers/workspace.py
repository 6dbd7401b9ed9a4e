"""The directory in which one layer is made: what is bound into the container, and its private /tmp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.build_host import settings
from ctrain_builder.build_host.settings import BuildHost
from ctrain_builder.cache import compiled

MNT = "mnt"
_HOSTS = "hosts"
_STARTED = "started"  # an empty file


@dataclass(frozen=True)
class Workspace:
    """`mnt_dir` is seen at /mnt, `scratch` at /tmp and /var/tmp: the host's own stay out of builds."""

    mnt_dir: Path
    scratch: Path
    host: BuildHost

    @property
    def scratch_binds(self) -> list[str]:
        return [f"{self.scratch}:/tmp", f"{self.scratch}:/var/tmp"]

    @property
    def binds(self) -> list[str]:
        hosts = f"{self.scratch.with_name(_HOSTS)}:/etc/hosts"  # a copy: %post may write to it
        return [f"{self.mnt_dir}:{settings.INSIDE}", *self.host.binds, *self.scratch_binds, hosts]

    def set_time(self, epoch: int) -> None:
        """Let the programs of %post take `epoch`, in seconds since 1970, for the present."""
        with (self.mnt_dir / settings.ENVIRONMENT).open("a", encoding="utf-8") as file:
            file.write(f"export SOURCE_DATE_EPOCH={epoch}\n")


def started(directory: Path) -> float:
    """The time by the file system's clock, in seconds since 1970, before which nothing of the build was written."""
    return (directory / _STARTED).stat().st_mtime


def prepare(directory: Path, host: BuildHost, constraints: str = "") -> Workspace:
    """Make the workspace in the (empty) work directory of a build. `constraints`: see settings.write."""
    workspace = Workspace(directory / MNT, directory / "scratch", host)
    (directory / _STARTED).touch()
    hosts = Path("/etc/hosts")
    (directory / _HOSTS).write_bytes(hosts.read_bytes() if hosts.exists() else b"127.0.0.1 localhost\n")
    workspace.mnt_dir.mkdir()
    workspace.scratch.mkdir()
    workspace.scratch.chmod(0o1777)
    (workspace.mnt_dir / compiled.DIRECTORY).mkdir()
    settings.write(host, workspace.mnt_dir, constraints)
    return workspace

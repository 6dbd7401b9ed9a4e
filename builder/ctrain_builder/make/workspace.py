"""The folder in which one layer is made: what is bound into the container, and its private /tmp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.make import site as sites
from ctrain_builder.make.site import Site


@dataclass(frozen=True)
class Workspace:
    """`lent` is seen at /mnt, `scratch` at /tmp and /var/tmp: the host's own stay out of builds."""

    lent: Path
    scratch: Path
    site: Site

    @property
    def scratch_binds(self) -> list[str]:
        return [f"{self.scratch}:/tmp", f"{self.scratch}:/var/tmp"]

    @property
    def binds(self) -> list[str]:
        return [f"{self.lent}:{sites.INSIDE}", *self.site.binds, *self.scratch_binds]


def prepare(folder: Path, site: Site) -> Workspace:
    """Make the workspace in the (empty) work folder of a build."""
    workspace = Workspace(folder / "lent", folder / "scratch", site)
    workspace.lent.mkdir()
    workspace.scratch.mkdir()
    workspace.scratch.chmod(0o1777)
    sites.write(site, workspace.lent)
    return workspace

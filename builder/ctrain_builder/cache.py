"""The builder's cache: $CTRAIN_CACHE or /var/tmp/ctrain-UID, private to one user. Everything in it can be made again.

layers/KEY.sif    a base layer          images/NAME_TAG-STACK.{sif,json}   finished images with their manifests
layers/KEY.sqsh   an upper layer        logs/IMAGE-STEP.log    locks/    tmp/   work folders of running builds
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.catalog import ImageSpec
from ctrain_runtime.errors import BuildError, SpaceError

_LIVE = ".live"  # a work folder's lock file: locked for as long as its build lives


@dataclass(frozen=True)
class Cache:
    root: Path

    def layer(self, key: str, is_base: bool) -> Path:
        return self.root / "layers" / f"{key}.{'sif' if is_base else 'sqsh'}"

    def has_layer(self, key: str, is_base: bool) -> bool:
        return self.layer(key, is_base).is_file()

    def image(self, spec: ImageSpec) -> Path:
        return self.root / "images" / f"{spec.file_stem}.sif"

    def log(self, spec: ImageSpec, step: str) -> Path:
        """The log of one step of an image's build, emptied."""
        path = self.root / "logs" / f"{spec.name}-{step}.log"
        path.write_bytes(b"")
        return path

    def require_space(self, needed: int, what: str) -> None:
        """Raise SpaceError unless `needed` bytes are free."""
        free = shutil.disk_usage(self.root).free
        if free < needed:
            raise SpaceError(
                f"{what} needs about {needed / 1e9:.1f} GB in {self.root}, {free / 1e9:.1f} GB are free",
                "Free some, or choose another place with --cache DIR",
            )

    @contextlib.contextmanager
    def lock(self, name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock `name`, so that two builders don't make the same thing; `waiting` is called if one has it."""
        with (self.root / "locks" / name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def work_folder(self) -> Iterator[Path]:
        """A folder for one build, removed at its end."""
        with contextlib.ExitStack() as stack:
            with self.lock("tmp"):  # sweep() must not see the folder before its lock is held
                folder = Path(tempfile.mkdtemp(dir=self.root / "tmp"))
                live = stack.enter_context((folder / _LIVE).open("w"))
                fcntl.flock(live, fcntl.LOCK_EX)
            try:
                yield folder
            finally:
                _remove(folder)

    def sweep(self) -> None:
        """Remove the work folders of builds that were killed: those whose lock nobody holds any more."""
        with self.lock("tmp"):
            for folder in (self.root / "tmp").iterdir():
                with contextlib.suppress(BlockingIOError), (folder / _LIVE).open("w") as live:
                    fcntl.flock(live, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)


def _remove(folder: Path) -> None:
    # A build that was killed may leave files of subordinate user IDs, which only root can remove: no reason to fail.
    with contextlib.suppress(PermissionError):
        shutil.rmtree(folder)


def open_cache(root: Path) -> Cache:
    """The cache at `root`, made if it isn't there. Raises BuildError when it is not this user's own."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # /var/tmp belongs to everybody: somebody else may have put a folder or a link of that name there.
        found = root.lstat()
        if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            hint = "Choose another place with --cache DIR or CTRAIN_CACHE"
            raise BuildError(f"cache {root} is a link, another user's, or writable by others", hint)
        for name in ("layers", "images", "logs", "locks", "tmp"):
            (root / name).mkdir(exist_ok=True)
    except OSError as error:
        hint = "Choose another place with --cache DIR or CTRAIN_CACHE"
        raise BuildError(f"cache {root} can't be used: {error.strerror}", hint) from error
    return Cache(root)


def default_root() -> Path:
    return Path(os.environ.get("CTRAIN_CACHE") or f"/var/tmp/ctrain-{os.geteuid()}")  # noqa: S108  # checked to be ours

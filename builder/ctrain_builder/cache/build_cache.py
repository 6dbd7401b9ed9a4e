"""What is in the builder's cache. All of it can be made again.

layers/KEY.sif    a base layer        images/NAME_TAG-STACK[-flat].{sif,json}   finished images with their manifests
layers/KEY.sqsh   an upper layer      inputs/NAME_TAG-STACK.DEFINITION.json     what a layer was made of last
layers/KEY.json   what is in it       facts/FINGERPRINT.json    answers of programs in images, and tests that passed
durations/NAME_TAG-STACK.json   of an image's steps    compiled/RECIPE.{tar,json}    what layers have compiled: compiled
logs/NAME_TAG-STEP.log    locks/ of running builds    tmp/ their work directories    space/ what they may still write
host    the machine that uses it, where locks do not reach others    ctrain-cache.json    that it is a cache: cache_root

Nothing is removed but files and directories with names as ctrain gives them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Optional, TypeVar

from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.files import atomic, locks, tree
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.plan.layer_key import LayerInputs
from ctrain_runtime.base import config
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.base.file_locks import lock_open_file
from ctrain_runtime.base.text import user_name
from ctrain_runtime.errors import BuildError, ConfigError
from ctrain_runtime.store import sif

T = TypeVar("T")
_LIVE = ".live"  # a work directory's lock file: locked for as long as its build lives
BASE_SUFFIX = ".sif"
DIRECTORIES = ("layers", "compiled", "images", "inputs", "facts", "durations", "logs", "locks", "tmp", "space")
_WORK = "ctrain-build-"  # with which the name of a work directory begins
EARLIER_WORK = re.compile(r"tmp[a-z0-9_]{8}")  # of a ctrain before it had markers in caches


@dataclass(frozen=True)
class LayerBuild:
    """How a layer of an image was made last. `size` is in bytes; `seconds` is 0 if this image never built it; `recipe`:
    see layer_key."""

    inputs: LayerInputs
    size: int
    seconds: int = 0
    recipe: str = ""


@dataclass(frozen=True)
class Cache:
    root: Path

    def layer(self, key: str, is_base: bool) -> Path:
        return self.root / "layers" / f"{key}{BASE_SUFFIX if is_base else '.sqsh'}"

    def compiled(self, recipe: str) -> Path:
        """What the layer that is made so has compiled."""
        return self.root / "compiled" / f"{recipe}.tar"

    def has_layer(self, key: str, is_base: bool) -> bool:
        return self.layer(key, is_base).is_file()

    def add_layer(self, made: Path, target: Path, built: str, origin: str = "", private: bool = False) -> None:
        """Move a finished layer, or what it has compiled, to its place, then describe it; the rest: LayerContent."""
        target.with_suffix(".json").unlink(missing_ok=True)  # first: it describes the file that is replaced
        self.place(made, target)
        self._describe(target, built, origin, private)

    def layer_content(self, key: str, is_base: bool) -> LayerContent:
        """What is in a layer of the cache. Reads all of it if that is not recorded."""
        path = self.layer(key, is_base)
        return self.known_content(key, is_base) or self._describe(path)

    def known_content(self, key: str, is_base: bool) -> Optional[LayerContent]:
        """What is in a layer of the cache; None if it is not in the cache, or not recorded."""
        return load_record(LayerContent, self.layer(key, is_base).with_suffix(".json"))

    def built(self, key: str, is_base: bool) -> str:
        """When a layer was built (UTC); "" if that is not recorded."""
        content = self.known_content(key, is_base)
        return content.built if content else ""

    def downloaded_by_other(self, key: str, is_base: bool, sources: Collection[str]) -> str:
        """Who, and from where, has downloaded a layer that is none of this user's, root's or the `sources`'; or ""."""
        content = self.known_content(key, is_base)
        if content and content.origin and content.origin not in sources:
            with contextlib.suppress(FileNotFoundError):
                owner = self.layer(key, is_base).stat().st_uid
                if owner not in (0, os.geteuid()):
                    return f"{user_name(owner)} from {content.origin}"
        return ""

    def _describe(self, path: Path, built: str = "", origin: str = "", private: bool = False) -> LayerContent:
        offset, size = partition(path)
        content = LayerContent(file_digest(path, offset, size), size, built, origin, private)
        known = {name: value for name, value in asdict(content).items() if value != "" and value is not False}
        self.write(path.with_suffix(".json"), known)  # earlier versions know only what most layers have
        return content

    def image(self, spec: ImageSpec, flat: bool = False) -> Path:
        return self.root / "images" / f"{spec.file_stem}{'-flat' if flat else ''}.sif"

    def log(self, spec: ImageSpec, step: str) -> Path:
        """The log of one step of an image's build, emptied."""
        return self.new_log(f"{spec.name}_{spec.tag}-{step}")

    def new_log(self, name: str) -> Path:
        """An empty log that only its owner reads."""
        path = self.root / "logs" / f"{name}.log"
        path.unlink(missing_ok=True)
        path.touch(0o600)
        return path

    def inputs(self, spec: ImageSpec, definition: str) -> Path:
        return self.root / "inputs" / f"{spec.file_stem}.{definition}.json"

    def made(self, spec: ImageSpec, definition: str) -> Optional[LayerBuild]:
        """What the layer of a definition was made of last for this image; None when that is not known."""
        return load_record(LayerBuild, self.inputs(spec, definition))

    def remember(self, spec: ImageSpec, definition: str, made: LayerBuild) -> None:
        before = self.made(spec, definition)
        if before and not made.seconds:
            made = replace(made, seconds=before.seconds)
        if before != made:
            self.write(self.inputs(spec, definition), asdict(made))

    def durations(self, spec: ImageSpec) -> dict[str, float]:
        """What the steps of an image's builds took last, in seconds; a layer's are in `made`."""
        return _read(self._durations(spec)) or {}

    def remember_durations(self, spec: ImageSpec, steps: Mapping[str, float]) -> None:
        known = {**self.durations(spec), **{step: round(seconds, 1) for step, seconds in steps.items()}}
        self.write(self._durations(spec), known)

    def _durations(self, spec: ImageSpec) -> Path:
        return self.root / "durations" / f"{spec.file_stem}.json"

    def fact(self, fingerprint: str) -> Optional[dict[str, Any]]:
        """What is remembered under a fingerprint of all that it depends on."""
        return _read(self._fact(fingerprint))

    def remember_fact(self, fingerprint: str, fact: Mapping[str, Any]) -> None:
        self.write(self._fact(fingerprint), fact)

    def forget_fact(self, fingerprint: str) -> None:
        self._fact(fingerprint).unlink(missing_ok=True)

    def facts(self, fingerprint: str, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `ask` tells, as it was when it was first asked under this fingerprint."""
        found = self.fact(fingerprint)
        if found is None:
            found = ask()
            self.remember_fact(fingerprint, found)
        return found

    def _fact(self, fingerprint: str) -> Path:
        return self.root / "facts" / f"{fingerprint}.json"

    def write(self, path: Path, data: Any) -> None:
        """Write a JSON file of the cache, whole or not at all."""
        with self.work_directory() as work:
            new = work / path.name
            new.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
            self.place(new, path)

    def place(self, finished: Path, target: Path) -> None:
        """Put a finished file in its place, durably; in a shared cache, the group may use and replace it."""
        if self.is_shared:
            os.chown(finished, -1, self.root.stat().st_gid)
            finished.chmod(finished.stat().st_mode | 0o060)
        atomic.move(finished, target)

    @property
    def is_shared(self) -> bool:
        """Whether it belongs to a group."""
        return bool(self.root.stat().st_mode & stat.S_IWGRP)

    def lock(
        self, name: str, waiting: Callable[[str], None] = lambda _: None, tick: Callable[[], None] = lambda: None
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the lock `name`, so that two builders don't make the same thing: see locks.hold."""
        return locks.hold(self.root / "locks" / name, waiting, tick, self.lock_mode)

    @property
    def lock_mode(self) -> int:
        return 0o664 if self.is_shared else 0o644

    @contextlib.contextmanager
    def use(self, path: Path) -> Iterator[bool]:
        """Keep a layer or image from being evicted, and note that it is in use now. False: it is not there."""
        while path.exists():
            file = locks.try_lock(path, fcntl.LOCK_SH)
            if file is not None:
                with file:
                    os.utime(path)
                    yield True
                return
            time.sleep(locks.POLL_SECONDS)  # it is being evicted
        yield False

    def move_out(self, path: Path, target: Path) -> Optional[Path]:
        """Move an image out of the cache, and forget its manifest. None: it is not there, or in use (then it stays)."""
        path.with_suffix(".json").unlink(missing_ok=True)  # first: an image without its manifest is none
        file = locks.try_lock(path, fcntl.LOCK_EX)
        if file is None:
            return None
        with file:
            if _is_open_elsewhere(file):
                return None
            path.replace(target)
        return target

    @contextlib.contextmanager
    def work_directory(self) -> Iterator[Path]:
        """A directory for one build, removed at its end."""
        with contextlib.ExitStack() as stack:
            with self.lock("tmp"):  # sweep() must not see the directory before its lock is held
                directory = Path(tempfile.mkdtemp(prefix=_WORK, dir=self.root / "tmp"))
                stack.callback(_remove, directory)  # once its lock is closed: on NFS, an open file stays as .nfs0123
                live = stack.enter_context((directory / _LIVE).open("wb"))
                lock_open_file(live, directory / _LIVE, fcntl.LOCK_EX)
            try:
                yield directory
            finally:
                _remove(directory)

    def sweep(self) -> list[Path]:
        """Remove the work directories and locks of builds that were killed: those that nobody holds any more.

        Returns the directories that remain: they hold files of subordinate user IDs, or what a build started still
        writes there for a moment.
        """
        left = []
        for path in (path for path in (self.root / "locks").iterdir() if path.is_file() and not path.is_symlink()):
            file = locks.try_lock(path, fcntl.LOCK_EX)
            if file is not None:
                with file:
                    path.unlink()
        with self.lock("tmp"):
            for directory in filter(_is_own_work, (self.root / "tmp").iterdir()):  # nobody else can remove one
                (directory / _LIVE).touch()  # again, for what was removed in part
                file = locks.try_lock(directory / _LIVE, fcntl.LOCK_EX)
                if file is not None:
                    with file:
                        _remove(directory)
                    _remove(directory)  # what the lock has left, which was open: see work_directory
                    if directory.exists():
                        (directory / _LIVE).touch()
                        left.append(directory)
        return left


def partition(layer: Path) -> tuple[int, int]:
    """Where in a layer's file its partition is, and how large, in bytes: of a base it is only a part of the file."""
    if layer.suffix == BASE_SUFFIX:
        [system] = sif.partitions(layer)
        return system.offset, system.size
    return 0, layer.stat().st_size


def _read(path: Path) -> Optional[dict[str, Any]]:
    """The object in a JSON file of the cache; None if there is none or it is damaged: it only saves work."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def load_record(kind: type[T], path: Path) -> Optional[T]:
    """The record in a JSON file of the cache; None as in `_read`."""
    with contextlib.suppress(ConfigError):
        found = _read(path)
        return None if found is None else config.load(kind, found, str(path))
    return None


def _is_open_elsewhere(file: IO[Any]) -> bool:
    """Whether another program, as a container that runs from it, has the file open; True where that can't be told."""
    try:  # a lease is given only when nobody else has it open
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    return False


def _is_own_work(path: Path) -> bool:
    """Whether it is a work directory of this user's."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False  # its build has just ended
    is_work = path.name.startswith(_WORK) or (EARLIER_WORK.fullmatch(path.name) and (path / _LIVE).is_file())
    return bool(is_work) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _remove(directory: Path) -> None:
    with contextlib.suppress(OSError, BuildError):  # no reason for a build to fail; sweep() has another try
        tree.remove(directory)

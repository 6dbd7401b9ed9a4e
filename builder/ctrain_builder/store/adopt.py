"""Adopts images that ctrain did not build: copies their files into a store, with manifests of what is inside.

The files themselves are only read. A copy gets the list of its packages, unless its file is signed: an object that is
added would break that signature.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from ctrain_builder.files.digests import Region
from ctrain_builder.image import foreign_packages, licenses, sbom
from ctrain_builder.store import adopted_name
from ctrain_builder.store.adopted_name import AdoptedName
from ctrain_builder.store.copy import copy, finalise, temporary
from ctrain_builder.store.publish import CopyObserver, commit_copy, find_same, last_release, require_not_withdrawn
from ctrain_builder.store.writer import Permissions, translate_os_errors
from ctrain_runtime.base import command
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import CtrainError, EngineError, GateNotPassed, ImageUnusable, StoreError
from ctrain_runtime.images import foreign
from ctrain_runtime.images.image import OCI_ARCH
from ctrain_runtime.images.pull import Report
from ctrain_runtime.store import sif
from ctrain_runtime.store.manifest import ADOPTED_LABEL, Base, Manifest
from ctrain_runtime.store.store import PublishedImage, Store

_ENCRYPTED = (5, 6)  # types of file systems, in the first bytes of a partition's own facts: by root, by gocryptfs


@dataclass(frozen=True)
class Request:
    """A file to adopt. `name` is None if nobody has named it."""

    file: Path
    name: Optional[AdoptedName] = None


@dataclass(frozen=True)
class Adoption:
    """A file, the version that it becomes, and its channel, if any. `is_known`: it is that version already."""

    file: Path
    manifest: Manifest
    is_known: bool = False
    channel: str = ""


@dataclass(frozen=True)
class Plan:
    """What becomes of the files: oldest version first, so that the newest is published last. `left_out` tells why."""

    adoptions: tuple[Adoption, ...]
    left_out: tuple[tuple[Path, CtrainError], ...]

    def with_channel(self, channel: str) -> Plan:
        """The same, and the newest version of each image gets this channel."""
        newest = {one.manifest.name: one for one in self.adoptions}
        given = (replace(one, channel=channel if newest[one.manifest.name] is one else "") for one in self.adoptions)
        return replace(self, adoptions=tuple(given))


def plan(store: Store, requests: Iterable[Request], engine: Engine, report: Report) -> Plan:
    """Look inside each file. One that cannot be adopted does not stop the others."""
    taken = {_key(one.manifest): one.manifest.reference for one in store.images()}
    adoptions: list[Adoption] = []
    left_out: list[tuple[Path, CtrainError]] = []
    for request in requests:
        try:
            adoption = _plan(store, request, taken, engine, report)
        except CtrainError as error:
            left_out.append((request.file, error))
            continue
        adoptions.append(adoption)
        taken.setdefault(_key(adoption.manifest), str(request.file))
    return Plan(tuple(sorted(adoptions, key=_age)), tuple(left_out))


def carry_out(
    plan: Plan, store: Store, engine: Engine, copying: Callable[[Adoption], AbstractContextManager[CopyObserver]]
) -> Plan:
    """Adopt one file after the other; what was done, and what failed besides. `copying` is entered for each."""
    done, left_out = [], list(plan.left_out)
    for adoption in plan.adoptions:
        try:
            with copying(adoption) as watch:
                published = adopt(adoption, store, engine, watch)
            done.append(replace(adoption, manifest=published.manifest))
        except GateNotPassed as error:  # it is published, and only the channel stays
            known = find_same(store, adoption.manifest)
            done.append(replace(adoption, manifest=known.manifest if known else adoption.manifest, channel=""))
            left_out.append((adoption.file, error))
        except CtrainError as error:
            left_out.append((adoption.file, error))
    return Plan(tuple(done), tuple(left_out))


def adopt(adoption: Adoption, store: Store, engine: Engine, watch: CopyObserver) -> PublishedImage:
    """Publish a copy, and move the channel to it. Raises ImageUnusable, StoreError, DiskFullError."""
    root = store.root
    with translate_os_errors(root), contextlib.ExitStack() as copies:
        copied = None if adoption.is_known else copies.enter_context(_copy(adoption, root, engine, watch))
        published, _ = commit_copy(
            root, adoption.manifest, copied, None, adoption.channel, watch, str(adoption.file.absolute())
        )
    return published


def _plan(store: Store, request: Request, taken: dict[AdoptedName, str], engine: Engine, report: Report) -> Adoption:
    manifest = _describe(request, engine, report)
    known = find_same(store, manifest)
    if known:
        return Adoption(request.file, known.manifest, is_known=True)
    require_not_withdrawn(store, manifest)
    if holder := taken.get(_key(manifest)):
        name = f"{manifest.name}:{manifest.tag}-{manifest.stack}"
        problem = f"{request.file} cannot become {name}: {holder} has that name"
        raise StoreError(problem, f"Choose another, as in: {name}2={request.file}")
    return Adoption(request.file, replace(manifest, release=last_release(store.root, manifest) + 1))


def _describe(request: Request, engine: Engine, report: Report) -> Manifest:
    """The manifest of a file, by a look inside. Raises ImageUnusable."""
    file = request.file.absolute()
    _check(file)
    examined, problem = foreign.examine(foreign.locate(file, report), engine, report, as_root=os.geteuid() == 0)
    if problem:
        raise ImageUnusable(f"cannot look inside {file}: {problem}", f"Try: {engine.name} exec {file} true")
    manifest = examined.manifest
    name = request.name or adopted_name.propose(file, manifest, file.stat().st_mtime)
    labels = {**manifest.labels, ADOPTED_LABEL: f"{file}@{manifest.digest}"}
    base = Base(manifest.labels.get(adopted_name.FROM_LABEL, ""))
    tools = {engine.name: engine.version}
    return replace(manifest, name=name.name, tag=name.tag, stack=name.stack, labels=labels, base=base, tools=tools)


def _check(file: Path) -> None:
    """Raise ImageUnusable for a file that ctrain has built, or that does not run here."""
    if file.is_dir():
        raise ImageUnusable(f"{file} is a directory", f"Name its files, as in: {file}/*.sif")
    if file.resolve().with_suffix(".json").is_file():
        raise ImageUnusable(f"{file} has a manifest beside it", "Copy a version of a store with: ctrain store sync")
    arch, machine = sif.check(file), platform.machine()
    if arch != OCI_ARCH.get(machine, machine):
        raise ImageUnusable(
            f"architecture mismatch: {file} is {arch}, this machine is {machine}", "Adopt it on such one"
        )
    if any(int.from_bytes(entry.extra[:4], "little") in _ENCRYPTED for entry in sif.partitions(file)):
        raise ImageUnusable(f"{file} is encrypted", "Only images that all users of the store can run are adopted")


@contextlib.contextmanager
def _copy(adoption: Adoption, root: Path, engine: Engine, watch: CopyObserver) -> Iterator[tuple[Path, Manifest]]:
    """A whole copy without a name, and its manifest. Raises ImageUnusable."""
    source, manifest, access = adoption.file, adoption.manifest, Permissions(root.stat())
    with temporary(root, manifest.file_name, watch.say) as file:
        whole = {0: Region(source, 0, manifest.size)}
        copied = copy(source, file, access, known=whole, done=watch.done)
        if copied.digest != manifest.digest:
            raise ImageUnusable(f"{source} has changed since it was examined", "Run the command again")
        if packages := _add_packages(file, adoption, engine, watch):
            finalise(file, access)
            labels = {**manifest.labels, **licenses.of_packages(manifest.labels, packages)}
            manifest = replace(manifest, digest=file_digest(file), size=file.stat().st_size, labels=labels)
        yield file, manifest


def _add_packages(file: Path, adoption: Adoption, engine: Engine, watch: CopyObserver) -> dict[str, Any]:
    """Put the list of an image's packages into its copy. Returns them; {} if there is none to put there."""
    if {entry.kind for entry in sif.read(file).entries} & {sif.SIGNATURE, sif.SBOM}:
        return {}
    try:
        packages = foreign_packages.collect(adoption.file, engine, as_root=os.geteuid() == 0)
    except EngineError as error:
        watch.say(f"ctrain: {adoption.file}: its packages are not known: {error.message}")
        return {}
    if not packages:
        return {}
    file.chmod(0o600)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as listed:
        listed.write(sbom.document_of_adopted(adoption.manifest, packages, adoption.file.stat().st_mtime))
        listed.flush()
        command.run([engine.path, "sif", "add", *sbom.OBJECT, str(file), listed.name])
    return packages


def _key(manifest: Manifest) -> AdoptedName:
    return AdoptedName(manifest.name, manifest.tag, manifest.stack)


def _age(adoption: Adoption) -> tuple[str, list[object], bool, str]:
    """Sorts versions of one image: by tag, and of one tag those with a stack last."""
    manifest = adoption.manifest
    tag: list[object] = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", manifest.tag)]
    return manifest.name, tag, manifest.stack != adopted_name.STACK, manifest.stack

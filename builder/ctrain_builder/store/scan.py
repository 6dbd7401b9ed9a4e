"""Has published versions examined by the scanner of the policy. It reads a version's package list; its verdict is kept
beside the manifest, which never changes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Optional

from ctrain_builder.files.manifest_writer import as_json, utc_now
from ctrain_builder.store import gates
from ctrain_builder.store.refresh import Say, refresh
from ctrain_builder.store.writer import LockedStore, lock_store
from ctrain_runtime.base import command
from ctrain_runtime.base.text import one_line
from ctrain_runtime.errors import CtrainError, ImageUnusable, StoreError
from ctrain_runtime.store import notes, policy, sif
from ctrain_runtime.store.notes import CLEAN, FAILED, FINDINGS, Scan
from ctrain_runtime.store.policy import SBOM, Scanner
from ctrain_runtime.store.store import PublishedImage, Store

_LONGEST = 1800  # seconds for one package list
_KEPT_LINES = 20
_NOT_STARTED = -1  # the exit code of a scanner that gave none


def require_scanner(root: Path) -> Scanner:
    """The scanner of the store's policy. Raises StoreError without one, ConfigError."""
    scanner = policy.load(root).scanner
    if scanner is None:
        hint = f"Write to {root / policy.FILE}: scanner: {{command: [grype, 'sbom:{SBOM}'], clean: [0], findings: [2]}}"
        raise StoreError(f"store {root} has no scanner", hint)
    policy.require_own(root)
    return scanner


def scan_all(store: Store, images: Iterable[PublishedImage], scanner: Scanner, say: Say) -> list[tuple[str, Scan]]:
    """Scan versions and keep the verdicts. What was made of the store follows once, also if one raises StoreError."""
    with contextlib.ExitStack() as after:
        after.callback(refresh, store, say)
        return [(image.manifest.reference, scan(store, image, scanner, say)) for image in images]


def scan(store: Store, image: PublishedImage, scanner: Scanner, say: Say) -> Scan:
    """Scan a version and keep the verdict. The store's lock is held only for that."""
    result = examine(image, scanner)
    with lock_store(store.root, say) as writer:
        current = {one.path.name: one.manifest.digest for one in writer.store.images()}
        if current.get(image.path.name) != image.manifest.digest:
            raise StoreError(f"{image.manifest.reference} was taken out of the store while it was scanned")
        keep(writer, image, result)
    return result


def for_channel(root: Path, channel: str, image: PublishedImage, say: Say) -> Optional[Scan]:
    """The verdict on a version, or on what becomes one, that a channel asks for; None if it needs none, or none can be
    had: then the gate tells what to do."""
    if not gates.lacks_scan(root, image, channel):
        return None
    try:
        scanner = require_scanner(root)
    except CtrainError as error:
        say(f"ctrain: {error}")
        return None
    say(f"scanning {image.manifest.name} for channel {channel}")
    return examine(image, scanner)


def examine(image: PublishedImage, scanner: Scanner) -> Scan:
    """The verdict of the scanner; a failure for a version without a package list, too."""

    def failed(why: str, code: int = _NOT_STARTED) -> Scan:
        return Scan(image.manifest.digest, FAILED, utc_now(), code, scanner.command, (one_line(why),))

    try:
        listed = sif.object_bytes(image.path, sif.SBOM)
    except ImageUnusable as error:
        return failed(error.message)
    if listed is None:
        return failed("it has no package list")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"{image.path.stem}.cdx.json")
        path.write_bytes(listed)
        argv = [word.replace(SBOM, str(path)) for word in scanner.command]
        try:
            done = command.run(argv, check=False, timeout=_LONGEST)
        except CtrainError as error:
            return failed(error.message)
    verdict = CLEAN if done.code in scanner.clean else FINDINGS if done.code in scanner.findings else FAILED
    lines = tuple(map(one_line, (done.stdout + done.stderr).splitlines()[-_KEPT_LINES:]))
    return Scan(image.manifest.digest, verdict, utc_now(), done.code, scanner.command, lines)


def keep(writer: LockedStore, image: PublishedImage, result: Scan) -> None:
    """Note the verdict beside the manifest; the one before is replaced."""
    writer.directory(notes.SCANS)
    writer.write(notes.path_for(image.path, notes.SCANS), as_json(asdict(result)))

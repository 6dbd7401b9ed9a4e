"""`ctrain store verify`, `du` and `log`: what a store has, whether it is whole, and who changed it."""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.bar import Bar, print_note
from ctrain_builder.cli.options import add_yes
from ctrain_builder.cli.store import signatures
from ctrain_builder.cli.store.common import AddAction, broken_channel, show
from ctrain_builder.store import log
from ctrain_builder.store import usage as usages
from ctrain_builder.store import verify as checks
from ctrain_builder.store.inventory import check_names, file_size, stored_versions
from ctrain_builder.store.refresh import change
from ctrain_runtime.base.text import format_duration, format_size, pluralize, table
from ctrain_runtime.errors import ImageUnusable, StoreError, UsageError
from ctrain_runtime.store.references import join_all
from ctrain_runtime.store.store import STORE_LOG, Store


def add_actions(add: AddAction) -> None:
    verify = add("verify", "read all images again and compare their digests", _verify)
    verify.add_argument("names", nargs="*", metavar="NAME[:VERSION]", help="images to look at (default: all)")
    verify.add_argument("--jobs", type=int, default=2, metavar="N", help="images read at once (default: 2)")
    verify.add_argument("--quarantine", action="store_true", help="move damaged versions to quarantine/, with --yes")
    verify.add_argument("--force", action="store_true", help="with --quarantine: also what a channel or a job needs")
    add_yes(verify)
    verify.add_argument(
        "--cache", type=Path, metavar="DIR", help="where an interrupted pass is recorded ($CTRAIN_CACHE)"
    )
    verify.add_argument("--signatures", action="store_true", help="check who signed instead of reading all images")
    verify.add_argument(
        "--key",
        action="append",
        metavar="KEY",
        help="with --signatures: a public key or certificate in PEM, or a PGP "
        "fingerprint (repeatable; default: the site's trusted_keys)",
    )
    add("du", "sizes of versions, and what they share", _du)
    add("log", "all changes, oldest first", _log).add_argument("name", nargs="?", metavar="NAME", help="of this image")


def _verify(args: argparse.Namespace, store: Store) -> int:
    if (args.force or args.yes) and not args.quarantine:
        raise UsageError("--force and --yes are for --quarantine", "Add it, or remove them")
    every = checks.subjects(store)
    names = join_all(args.names)
    check_names(store, (name for name in names if ":" not in name), {subject.name for subject in every})
    check_names(store, (name for name in names if ":" in name), {subject.reference for subject in every})
    if args.signatures and (args.quarantine or args.force):
        raise UsageError("--signatures moves no images", "Remove --quarantine and --force")
    if args.key and not args.signatures:
        raise UsageError("--key requires --signatures", "Add --signatures")
    if args.signatures:
        return signatures.verify(args, store, names)
    wanted = [subject for subject in every if not names or {subject.name, subject.reference} & {*names}]
    cache = open_cache(args.cache)
    place = hashlib.sha256(str(store.root.resolve()).encode()).hexdigest()[:12]
    notes = checks.VerifyProgress(cache.root / f"verified-{place}.json")
    total = sum(file_size(subject.image) for subject in wanted)
    started = time.monotonic()
    with Bar(f"verifying {pluralize(len(wanted), 'version')}", total) as bar:
        wrong = [finding for finding in checks.verify(wanted, notes, max(1, args.jobs), bar.add) if finding.problem]
    damaged = [finding for finding in wrong if finding.is_damaged]
    unchecked = [finding for finding in wrong if not finding.is_damaged]
    dangling = [one for one in store.scan().dangling if not names or one.name in names]
    moved = _quarantine(store, damaged, args.force) if damaged and args.yes else []
    taken = format_duration(time.monotonic() - started)
    lines = [
        *(finding.problem for finding in damaged),
        *(f"could not be checked: {finding.problem}" for finding in unchecked),
        *map(str, dangling),
        f"{pluralize(len(wanted) - len(wrong), 'version')} whole, {len(damaged)} damaged, {len(unchecked)} not checked "
        f"({format_size(total)}, {taken})",
    ]
    if damaged and not args.yes:
        lines.append("move damaged versions to quarantine with: ctrain store verify --quarantine --yes")
    listed = {
        key: [{"image": str(one.subject.image), "problem": one.problem} for one in findings]
        for key, findings in (("damaged", damaged), ("unchecked", unchecked))
    }
    data = {"versions": len(wanted), **listed, "dangling": list(map(str, dangling)), "quarantined": moved}
    show(args, data, "\n".join(lines))
    return ImageUnusable.exit_code if damaged else StoreError.exit_code if unchecked or dangling else 0


def _quarantine(store: Store, damaged: Sequence[checks.VerifyResult], force: bool) -> list[str]:
    """The names of the versions that were moved. Raises StoreError if the place of one is taken, when the others are
    moved."""
    results = []
    with change(store, print_note) as writer:
        for one in checks.quarantine_all(writer, damaged, force):
            results.append(one)
            if one.directory:
                print_note(f"{one.name} is in {one.directory} now")
            elif one.why:
                print_note(f"{one.name} stays: {one.why}")
            for channel in one.channels:
                print_note(broken_channel(one.name.partition(":")[0], channel))
    blocked = [one.problem for one in results if one.problem]
    for problem in blocked[:-1]:
        print_note(str(problem))
    if blocked:
        raise blocked[-1]
    return [one.name for one in results if one.directory]


def _du(args: argparse.Namespace, store: Store) -> int:
    versions = {one.image: one for one in stored_versions(store) if one.image.is_file()}
    files, together = usages.usage([*versions])
    rows = []
    for one in files:
        version, shared = versions[one.path], "-" if one.shared is None else format_size(one.shared)
        rows.append((version.name, version.version, version.state, format_size(one.size), shared))
    total = format_size(sum(one.size for one in files))
    total = f"{total} in {pluralize(len(files), 'file')}, {format_size(together)} on the disk"
    text = f"{table(('image', 'version', 'state', 'size', 'shared'), rows)}\n{total}" if files else "no versions"
    facts = ((one, versions[one.path].state) for one in files)
    data = [{"path": str(one.path), "state": state, "size": one.size, "shared": one.shared} for one, state in facts]
    return show(args, {"versions": data, "on_disk": together}, text)


def _log(args: argparse.Namespace, store: Store) -> int:
    if log.is_lost(store.root):
        hint = "Restore it from a backup; the next change begins a new one"
        raise StoreError(f"{store.root / STORE_LOG} is lost: what was changed is unknown", hint)
    entries = list(log.read(store.root))
    known = {entry.name for entry in entries} | {version.name for version in stored_versions(store)}
    check_names(store, [] if args.name is None else [args.name], known)
    entries = [entry for entry in entries if args.name in (None, entry.name)]
    rows = [
        (one.when, f"{one.who}@{one.host}", one.action, one.name, one.channel, one.before, one.version, one.why)
        for one in entries
    ]
    head = ("when", "who", "what", "image", "channel", "from", "to", "why")
    text = table(head, rows) if rows else "no changes yet"
    return show(args, {"entries": [asdict(entry) for entry in entries]}, text)

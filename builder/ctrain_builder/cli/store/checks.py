"""`ctrain store verify`, `du` and `log`: what a store has, whether it is whole, and who changed it."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ctrain_builder import cache as caches
from ctrain_builder.cli.bar import Bar, say
from ctrain_builder.cli.store.common import AddAction, show
from ctrain_builder.store import log
from ctrain_builder.store import usage as usages
from ctrain_builder.store import verify as checks
from ctrain_builder.store.writer import change
from ctrain_runtime.errors import ImageUnusable, UsageError
from ctrain_runtime.store import Store
from ctrain_runtime.text import format_duration, format_size, pluralize, table


def add_actions(add: AddAction) -> None:
    verify = add("verify", "read all images again and compare their digests", _verify)
    verify.add_argument("names", nargs="*", metavar="NAME", help="images to look at (default: all)")
    verify.add_argument("--jobs", type=int, default=2, metavar="N", help="images read at once (default: 2)")
    verify.add_argument("--report-only", action="store_true", help="leave what is damaged where it is")
    verify.add_argument("--cache", type=Path, metavar="DIR", help="where an interrupted pass is noted ($CTRAIN_CACHE)")
    add("du", "sizes of versions, and what they share", _du)
    add("log", "all changes, oldest first", _log).add_argument("name", nargs="?", metavar="NAME", help="of this image")


def _verify(args: argparse.Namespace, store: Store) -> int:
    every = checks.subjects(store)
    names = {_name(one) for one in every}
    unknown = sorted(set(args.names) - names)
    if unknown:
        raise UsageError(f"store {store.root} has no image {unknown[0]!r}", f"It has: {', '.join(sorted(names))}")
    wanted = [one for one in every if not args.names or _name(one) in args.names]
    cache = caches.open_cache(args.cache or caches.default_root())
    place = hashlib.sha256(str(store.root.resolve()).encode()).hexdigest()[:12]
    notes = checks.Notes(cache.root / f"verified-{place}.json")
    total = sum(one.image.stat().st_size for one in wanted if one.image.is_file())
    started = time.monotonic()
    with Bar(f"verifying {pluralize(len(wanted), 'file')}", total) as bar:
        damaged = [one for one in checks.verify(wanted, notes, max(1, args.jobs), bar.add) if one.problem]
    if damaged and not args.report_only:
        with change(store.root, say) as writer:
            for finding in damaged:
                folder = checks.quarantine(writer, finding)
                print(f"{finding.subject.image.stem} is in {folder} now", file=sys.stderr)
    taken = format_duration(time.monotonic() - started)
    whole = (
        f"{pluralize(len(wanted) - len(damaged), 'file')} whole, {len(damaged)} damaged ({format_size(total)}, {taken})"
    )
    data = [{"image": str(one.subject.image), "problem": one.problem} for one in damaged]
    show(args, {"files": len(wanted), "damaged": data}, "\n".join([*(one.problem for one in damaged), whole]))
    return ImageUnusable.exit_code if damaged else 0


def _name(subject: checks.Subject) -> str:
    return subject.manifest.name.partition("_")[0]


def _du(args: argparse.Namespace, store: Store) -> int:
    published = store.images()
    names = {image.path: (image.manifest.name, image.manifest.version) for image in published}
    found, together = usages.usage([*names])
    rows = [
        (*names[one.path], format_size(one.size), "-" if one.shared is None else format_size(one.shared))
        for one in found
    ]
    total = format_size(sum(one.size for one in found))
    total = f"{total} in {pluralize(len(found), 'file')}, {format_size(together)} on the disk"
    text = f"{table(('image', 'version', 'size', 'shared'), rows)}\n{total}" if found else "no versions"
    data = [{"path": str(one.path), "size": one.size, "shared": one.shared} for one in found]
    return show(args, {"versions": data, "on_disk": together}, text)


def _log(args: argparse.Namespace, store: Store) -> int:
    entries = [entry for entry in log.read(store.root) if args.name in (None, entry.name)]
    rows = [
        (entry.when, f"{entry.who}@{entry.host}", entry.action, entry.name, entry.channel, entry.before, entry.version)
        for entry in entries
    ]
    head = ("when", "who", "what", "image", "channel", "from", "to")
    text = table(head, rows) if rows else "no changes yet"
    return show(args, {"entries": [asdict(entry) for entry in entries]}, text)

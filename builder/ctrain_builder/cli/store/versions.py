"""`ctrain store retire`, `withdraw`, `restore` and `gc`: what becomes of versions and their files."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.options import days
from ctrain_builder.cli.store.common import AddAction, broken_channel, show
from ctrain_builder.store import lifecycle
from ctrain_builder.store.refresh import refresh
from ctrain_builder.store.restore import find_restorable, restore
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.errors import UsageError
from ctrain_runtime.lease import Lease
from ctrain_runtime.store import Store
from ctrain_runtime.text import format_size, pluralize, table


def add_actions(add: AddAction) -> None:
    retire = add("retire", "no longer offer versions", _retire)
    retire.add_argument("versions", nargs="+", metavar="NAME:VERSION")
    retire.add_argument("--why", default="", metavar="TEXT", help="for the log")
    withdraw = add("withdraw", "take versions out of use at once, also out of channels", _withdraw)
    withdraw.add_argument("versions", nargs="+", metavar="NAME:VERSION")
    withdraw.add_argument("--why", required=True, metavar="TEXT", help="the reason: for users and the log")
    restore = add("restore", "offer a retired, withdrawn or quarantined version again", _restore)
    restore.add_argument("version", metavar="NAME:VERSION")
    gc = add("gc", "remove retired versions, and what interrupted commands have left", _gc)
    gc.add_argument(
        "--grace",
        type=days,
        default=lifecycle.GRACE_DAYS,
        metavar="DAYS",
        help=f"how long retired versions are kept (default: {lifecycle.GRACE_DAYS:.0f})",
    )
    gc.add_argument(
        "--longest-lease",
        type=days,
        default=lifecycle.LONGEST_LEASE,
        metavar="DAYS",
        help=f"how long jobs can keep a version after its retirement (default: {lifecycle.LONGEST_LEASE:.0f})",
    )
    for one in (retire, withdraw, gc):
        one.add_argument("--yes", action="store_true", help="do it; without this only the plan is shown")


def _retire(args: argparse.Namespace, store: Store) -> int:
    found = lifecycle.retirable(store, args.versions)
    if args.yes:
        with lock_store(store.root, print_note) as writer:
            found = lifecycle.retire(writer, args.versions, args.why)
        refresh(store, print_note)
    names = [f"{image.manifest.name}:{image.manifest.version}" for image in found]
    did = "retired" if args.yes else "would retire"
    then = f"its file goes {lifecycle.GRACE_DAYS:.0f} days after, with ctrain store gc" if args.yes else "--yes does it"
    lines = [f"{did} {name} ({format_size(image.manifest.size)})" for name, image in zip(names, found)]
    return show(args, {"retired": names, "done": args.yes}, "\n".join([*lines, then]))


def _withdraw(args: argparse.Namespace, store: Store) -> int:
    if not args.why.strip():
        raise UsageError("--why must not be empty", "Users are shown this reason")
    found = lifecycle.named_versions(store, args.versions)
    if args.yes:
        with lock_store(store.root, print_note) as writer:
            found = lifecycle.withdraw(writer, args.versions, args.why)
        refresh(store, print_note)
    names = [f"{image.manifest.name}:{image.manifest.version}" for image in found]
    lines = [f"{'withdrew' if args.yes else 'would withdraw'} {name}" for name in names]
    for image in found:
        lines += [broken_channel(image.manifest.name, channel) for channel in image.channels]
    then = f"its file goes {lifecycle.GRACE_DAYS:.0f} days after, with ctrain store gc" if args.yes else "--yes does it"
    emptied = [f"{image.manifest.name}:{channel}" for image in found for channel in image.channels]
    data = {"withdrawn": names, "channels": emptied, "done": args.yes}
    return show(args, data, "\n".join([*lines, then]))


def _restore(args: argparse.Namespace, store: Store) -> int:
    found = find_restorable(store, args.version)
    with lock_store(store.root, print_note) as writer:
        restore(writer, found)
    refresh(store, print_note)
    return show(args, {"restored": args.version}, f"{args.version} is offered again")


def _gc(args: argparse.Namespace, store: Store) -> int:
    found = list(lifecycle.garbage(store, args.grace, time.time(), args.longest_lease))
    if args.yes:
        with lock_store(store.root, print_note) as writer:
            found = lifecycle.collect(writer, args.grace, args.longest_lease)
    total = sum(one.size for one in found)
    rows = [(one.path.name, format_size(one.size), one.why) for one in found]
    did = f"removed {pluralize(len(found), 'file')}" if args.yes else f"would remove {pluralize(len(found), 'file')}"
    then = "" if args.yes else "; --yes does it"
    text = (
        f"{table(('file', 'size', 'why'), rows)}\n{did}, {format_size(total)}{then}" if found else "nothing to remove"
    )
    kept = lifecycle.leases_on_retired(store, time.time(), args.longest_lease)
    files = [{"path": str(one.path), "size": one.size, "why": one.why} for one in found]
    copies = [{"path": str(path), "by": who} for path, who in lifecycle.copies(store)]
    data = {"files": files, "size": total, "done": args.yes, "needed": [asdict(one) for one in kept], "copies": copies}
    stay = [f"{one['path']} stays: {one['by']} may still be writing it" for one in copies]
    return show(args, data, "\n".join([text, *map(_needed, kept), *stay]))


def _needed(lease: Lease) -> str:
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(lease.until))
    return f"{lease.image} stays: a job of {lease.owner} needs it, until {until} at the latest"

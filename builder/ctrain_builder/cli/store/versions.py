"""`ctrain store list`, `retire`, `withdraw`, `restore`, `remove` and `gc`: what becomes of versions and their files."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.options import add_dry_run, add_yes, days, positive
from ctrain_builder.cli.store.common import GOES_LATER, AddAction, broken_channel, show
from ctrain_builder.store import inventory, lifecycle, log
from ctrain_builder.store.refresh import change
from ctrain_builder.store.remove import find_removable, remove
from ctrain_builder.store.restore import find_restorable, restore
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.base.text import format_size, pluralize, table
from ctrain_runtime.cli import images
from ctrain_runtime.errors import UsageError
from ctrain_runtime.store.references import join, join_all
from ctrain_runtime.store.store import RETIRED, Store

_VERSION_HELP = "NAME VERSION is the same as NAME:VERSION"
_LISTED = ("name", "version", "state", "since", "size", "why", "path")


def add_actions(add: AddAction) -> None:
    listing = add("list", "the versions: as `ctrain images`", _list)
    listing.add_argument("--retired", action="store_true", help="those retired, withdrawn or removed instead")
    listing.add_argument("--quarantined", action="store_true", help="those in quarantine instead")
    listing.add_argument("--all", action="store_true", help="all versions that the store has ever had, in any state")
    retire = add("retire", "no longer offer versions", _retire)
    retire.add_argument("versions", nargs="*", metavar="NAME:VERSION", help=f"{_VERSION_HELP}; with --keep: NAME")
    text = "all but the newest N of each image, tag and stack, and those that a channel or a job needs"
    retire.add_argument("--keep", type=positive, metavar="N", help=text)
    retire.add_argument("--why", default="", metavar="TEXT", help="for the log")
    withdraw = add("withdraw", "take versions out of use at once, also out of channels", _withdraw)
    withdraw.add_argument("versions", nargs="+", metavar="NAME:VERSION", help=_VERSION_HELP)
    withdraw.add_argument("--why", required=True, metavar="TEXT", help="the reason: for users and the log")
    restore = add("restore", "offer a retired, withdrawn or quarantined version again", _restore)
    restore.add_argument("name", metavar="NAME:VERSION")
    restore.add_argument("version", nargs="?", metavar="VERSION", help=_VERSION_HELP)
    add_dry_run(restore)
    remove = add("remove", "remove the file of one version at once", _remove)
    remove.add_argument("name", metavar="NAME:VERSION")
    remove.add_argument("version", nargs="?", metavar="VERSION", help=_VERSION_HELP)
    remove.add_argument("--why", default="", metavar="TEXT", help="the reason: for users and the log")
    remove.add_argument("--force", action="store_true", help="also what a channel or a job needs: its jobs fail")
    gc = add("gc", "remove retired versions, and what interrupted commands have left", _gc)
    gc.add_argument(
        "--grace",
        type=days,
        default=lifecycle.GRACE_DAYS,
        metavar="DAYS",
        help=f"how long retired versions are kept (default: {lifecycle.GRACE_DAYS:.0f})",
    )
    gc.add_argument("--quarantine", action="store_true", help="also the damaged images in quarantine/")
    for action in (retire, withdraw, remove, gc):
        add_yes(action)


def _list(args: argparse.Namespace, store: Store) -> int:
    if not (args.all or args.retired or args.quarantined):
        return images.execute(args)
    wanted = {inventory.QUARANTINED} if args.quarantined else set()
    wanted |= {RETIRED, inventory.WAS_WITHDRAWN, inventory.REMOVED} if args.retired else set()
    versions = [one for one in inventory.stored_versions(store) if args.all or one.state in wanted]
    changes = {(entry.name, entry.version): entry for entry in log.read(store.root) if _changes_state(entry)}
    rows, data = [], []
    for one in sorted(versions, key=lambda one: one.reference):
        change, size = changes.get((one.name, one.version)), inventory.file_size(one.image)
        facts = (one.name, one.version, one.state, change.when if change else "")
        why = change.why if change else ""
        rows.append((*facts, format_size(size), why))
        data.append(dict(zip(_LISTED, (*facts, size, why, str(one.image)))))
    return show(args, {"versions": data}, table(_LISTED[:-1], rows) if rows else "no such versions")


def _changes_state(entry: log.Entry) -> bool:
    return not entry.channel and entry.action not in log.NOTES


def _retire(args: argparse.Namespace, store: Store) -> int:
    if not args.versions and args.keep is None:
        raise UsageError("no versions given", "Name versions as NAME:VERSION, or pass --keep N")
    wanted = join_all(args.versions) if args.keep is None else args.versions
    images = lifecycle.retirable(store, wanted, args.keep)
    if args.yes:
        with change(store, print_note) as writer:
            images = lifecycle.retire(writer, wanted, args.why, args.keep)
    names = [image.manifest.reference for image in images]
    did = "retired" if args.yes else "would retire"
    lines = [f"{did} {name} ({format_size(image.manifest.size)})" for name, image in zip(names, images)]
    then = [GOES_LATER if args.yes else "confirm with --yes"] if images else ["nothing to retire"]
    return show(args, {"retired": names, "done": args.yes}, "\n".join([*lines, *then]))


def _withdraw(args: argparse.Namespace, store: Store) -> int:
    if not args.why.strip():
        raise UsageError("--why must not be empty", "Users are shown this reason")
    references = join_all(args.versions)
    images = lifecycle.withdrawable(store, references)
    if args.yes:
        with change(store, print_note) as writer:
            images = lifecycle.withdraw(writer, references, args.why)
    names = [image.manifest.reference for image in images]
    lines = [f"{'withdrew' if args.yes else 'would withdraw'} {name}" for name in names]
    for image in images:
        lines += [broken_channel(image.manifest.name, channel) for channel in image.channels]
    relatives = lifecycle.relatives(store, [image.manifest for image in images])
    lines += [f"{one} has the topmost layer of a withdrawn one" for one in relatives]
    emptied = [f"{image.manifest.name}:{channel}" for image in images for channel in image.channels]
    data = {"withdrawn": names, "channels": emptied, "relatives": relatives, "done": args.yes}
    return show(args, data, "\n".join([*lines, GOES_LATER if args.yes else "confirm with --yes"]))


def _restore(args: argparse.Namespace, store: Store) -> int:
    restorable = find_restorable(store, join(args.name, args.version))
    if not args.dry_run:
        with change(store, print_note) as writer:
            restore(writer, restorable)
    name = restorable.version.reference
    text = f"{name} {'would be' if args.dry_run else 'is'} offered again"
    return show(args, {"restored": name, "done": not args.dry_run}, text)


def _remove(args: argparse.Namespace, store: Store) -> int:
    reference = join(args.name, args.version)
    going = find_removable(store, reference)
    if args.yes:
        with change(store, print_note) as writer:
            going = remove(writer, reference, args.why.strip(), args.force)
    files = ", ".join(map(str, going.files))
    lines = [f"{'removed' if args.yes else 'would remove'} {reference} ({format_size(going.size)}): {files}"]
    lines += [f"needed by {one}" for one in going.needed_by]
    lines += [f"its topmost layer is also in {one}" for one in going.relatives]
    lines += [broken_channel(going.version.name, channel) for channel in going.channels]
    lines.append("its manifest, signatures and log stay here; copies in other stores, registries and caches stay, too")
    if not args.yes:
        force = " and --force" if going.needed_by and not args.force else ""
        lines.append(f"confirm with --yes{force}")
    data = {"removed": reference, "path": str(going.version.image), "size": going.size, "needed_by": going.needed_by}
    return show(args, {**data, "relatives": going.relatives, "done": args.yes}, "\n".join(lines))


def _gc(args: argparse.Namespace, store: Store) -> int:
    if args.yes:
        with lock_store(store.root, print_note) as writer:
            removals = lifecycle.collect(writer, args.grace, args.quarantine)
    else:
        removals = list(lifecycle.garbage(store, args.grace, time.time(), args.quarantine))
    total = sum(one.size for one in removals)
    rows = [(one.path.name, format_size(one.size), one.why) for one in removals]
    what = f"{pluralize(len(removals), 'file')} ({format_size(total)})"
    summary = f"removed {what}" if args.yes else f"{what}; confirm with --yes"
    text = f"{table(('file', 'size', 'why'), rows)}\n{summary}" if removals else "nothing to remove"
    kept = lifecycle.leases_on_retired(store, time.time())
    files = [{"path": str(one.path), "size": one.size, "why": one.why} for one in removals]
    copies = [{"path": str(path), "by": who} for path, who in lifecycle.copies(store)]
    data = {"files": files, "size": total, "done": args.yes, "needed": [asdict(one) for one in kept], "copies": copies}
    leased = [f"kept {one.image}: leased by {one}" for one in kept]
    copying = [f"kept {one['path']}: {one['by']} may still be writing it" for one in copies]
    return show(args, data, "\n".join([text, *leased, *copying]))

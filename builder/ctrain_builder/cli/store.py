"""Manage a store: channels, retirement, garbage collection, integrity.

  ctrain store list                                list versions; see also: show IMAGE, diff OLD NEW
  ctrain store promote pytorch 24.12-hd-r4 prod    point channel prod of pytorch to this version
  ctrain store rollback pytorch prod               point it to the previous version
  ctrain store retire pytorch:24.12-hd-r3          offer a version no longer; its file is kept for a while
  ctrain store restore pytorch:24.12-hd-r3         offer it again
  ctrain store gc                                  list removable files; --yes removes them
  ctrain store verify                              re-read all files and quarantine damaged ones
  ctrain store du                                  show sizes and shared data
  ctrain store log                                 list all changes
  ctrain store modules --output /apps/modules      write module files: module load ctrain-pytorch/24.12-hd-r3
  ctrain store sync SRC DST                        copy versions to another store, also through a registry
  ctrain store catalogue                           write a web page into the store: search, compare, copy commands

The store is --store DIR or $CTRAIN_STORE. See: ctrain help store.md
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ctrain_builder import cache as caches
from ctrain_builder.cli.bar import Bar, say
from ctrain_builder.store import catalogue, channels, lifecycle, log, modules
from ctrain_builder.store import usage as usages
from ctrain_builder.store import verify as checks
from ctrain_builder.store.writer import change
from ctrain_runtime.cli import images
from ctrain_runtime.errors import ImageUnusable, RegistryError, UsageError
from ctrain_runtime.lease import Lease
from ctrain_runtime.store import BASES, Store, open_store
from ctrain_runtime.text import format_duration, format_size, pluralize, table

_SYNC = """\
Bring versions from one store to another, under the names and numbers that they have.

  ctrain store sync ./store oras://registry.example.com/images        all versions to a registry
  ctrain store sync oras://registry.example.com/images /apps/ctrain   and from there to another store
  ctrain store sync /apps/ctrain /mnt/disk pytorch:prod --channels    what prod is, and the channel with it

SRC and DST are folders, or places in a registry, where each image is a repository with versions and channels as tags:
`apptainer pull oras://registry.example.com/images/pytorch:prod` works too. What DST has already is not copied again,
and what was interrupted goes on where it was. A registry asks for the login that `apptainer registry login` has left.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, allow_abbrev=False)
        made.add_argument("--store", metavar="DIR", help="the store's folder (default: $CTRAIN_STORE)")
        made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        return made

    action("list", "the versions: as `ctrain images`")
    action("show", "one version: as `ctrain images show`").add_argument("image", metavar="IMAGE")
    diff = action("diff", "what changed between two versions: as `ctrain images diff`")
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    promote = action("promote", "make a channel point to a version")
    promote.add_argument("name", metavar="NAME")
    promote.add_argument("version", metavar="VERSION", help="a version, a digest, or the channel that means it now")
    promote.add_argument("channel", metavar="CHANNEL")
    rollback = action("rollback", "make a channel point to what it pointed to before")
    rollback.add_argument("name", metavar="NAME")
    rollback.add_argument("channel", metavar="CHANNEL")
    retire = action("retire", "no longer offer versions")
    retire.add_argument("versions", nargs="+", metavar="NAME:VERSION")
    retire.add_argument("--why", default="", metavar="TEXT", help="for the log")
    restore = action("restore", "offer a retired version again")
    restore.add_argument("version", metavar="NAME:VERSION")
    gc = action("gc", "remove retired versions, and what interrupted commands have left")
    gc.add_argument(
        "--grace",
        type=_days,
        default=lifecycle.GRACE,
        metavar="DAYS",
        help=f"how long retired versions are kept (default: {lifecycle.GRACE:.0f})",
    )
    for one in (retire, gc):
        one.add_argument("--yes", action="store_true", help="do it; without this only the plan is shown")
    verify = action("verify", "read all images again and compare their digests")
    verify.add_argument("names", nargs="*", metavar="NAME", help="images to look at (default: all)")
    verify.add_argument("--jobs", type=int, default=2, metavar="N", help="images read at once (default: 2)")
    verify.add_argument("--report-only", action="store_true", help="leave what is damaged where it is")
    verify.add_argument("--cache", type=Path, metavar="DIR", help="where an interrupted pass is noted ($CTRAIN_CACHE)")
    action("du", "sizes of versions, and what they share")
    action("log", "all changes, oldest first").add_argument("name", nargs="?", metavar="NAME", help="of this image")
    module_files = action("modules", "write module files for environment-modules and Lmod")
    module_files.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for `module use`")
    shown = argparse.RawDescriptionHelpFormatter
    text = "bring versions to another store, or to and from a registry"
    sync = actions.add_parser("sync", help=text, description=_SYNC, formatter_class=shown, allow_abbrev=False)
    sync.add_argument("source", metavar="SRC", help="a store's folder, or oras://HOST[:PORT]/PATH")
    sync.add_argument("target", metavar="DST", help="the same; an absent or empty folder becomes a store")
    sync.add_argument("images", nargs="*", default=[], metavar="NAME[:VERSION|:CHANNEL]", help="default: all")
    sync.add_argument("--channels", action="store_true", help="also make DST's channels point to what SRC's do")
    sync.add_argument("--dry-run", action="store_true", help="only show what would be done")
    sync.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    sync.add_argument("--cache", type=Path, metavar="DIR", help="where uploads are noted ($CTRAIN_CACHE)")
    page = action("catalogue", "write a web page of the store: one file, which needs no network")
    page.add_argument("--output", type=Path, metavar="FILE", help=f"where (default: {catalogue.FILE} in the store)")


def execute(args: argparse.Namespace) -> int:
    if args.action == "sync":
        try:
            from ctrain_builder.cli import sync  # only now: all other actions do without a client of registries
        except ModuleNotFoundError as error:
            what = f"{error.name}, which asks registries, is missing"
            raise RegistryError(what, "Install it: pip install 'ctrain[build]'") from error
        return sync.execute(args)
    root = args.store or os.environ.get("CTRAIN_STORE")
    if not root:
        raise UsageError("no store is named", "Give one with --store DIR or CTRAIN_STORE")
    return int(_ACTIONS[args.action](args, open_store(Path(root))))


def _promote(args: argparse.Namespace, store: Store) -> int:
    with change(store.root, say) as writer:
        before, image = channels.promote(writer, args.name, args.version, args.channel)
    return _moved(args, before, image.manifest.version)


def _rollback(args: argparse.Namespace, store: Store) -> int:
    with change(store.root, say) as writer:
        before, image = channels.rollback(writer, args.name, args.channel)
    return _moved(args, before, image.manifest.version)


def _moved(args: argparse.Namespace, before: str, now: str) -> int:
    was = "it was that already" if before == now else f"it was {before}" if before else "it is new"
    data = {"name": args.name, "channel": args.channel, "before": before, "version": now}
    return _say(args, data, f"channel {args.channel} of {args.name} is {now} ({was})")


def _retire(args: argparse.Namespace, store: Store) -> int:
    found = lifecycle.retirable(store, args.versions)
    if args.yes:
        with change(store.root, say) as writer:
            found = lifecycle.retire(writer, args.versions, args.why)
    names = [f"{image.manifest.name}:{image.manifest.version}" for image in found]
    did = "retired" if args.yes else "would retire"
    then = f"its file goes {lifecycle.GRACE:.0f} days after, with ctrain store gc" if args.yes else "--yes does it"
    lines = [f"{did} {name} ({format_size(image.manifest.size)})" for name, image in zip(names, found)]
    return _say(args, {"retired": names, "done": args.yes}, "\n".join([*lines, then]))


def _restore(args: argparse.Namespace, store: Store) -> int:
    with change(store.root, say) as writer:
        lifecycle.restore(writer, args.version)
    return _say(args, {"restored": args.version}, f"{args.version} is offered again")


def _gc(args: argparse.Namespace, store: Store) -> int:
    found = list(lifecycle.removals(store, args.grace, time.time()))
    if args.yes:
        with change(store.root, say) as writer:
            found = lifecycle.collect(writer, args.grace)
    total = sum(one.size for one in found)
    rows = [(one.path.name, format_size(one.size), one.why) for one in found]
    did = f"removed {pluralize(len(found), 'file')}" if args.yes else f"would remove {pluralize(len(found), 'file')}"
    then = "" if args.yes else "; --yes does it"
    text = (
        f"{table(('file', 'size', 'why'), rows)}\n{did}, {format_size(total)}{then}" if found else "nothing to remove"
    )
    kept = lifecycle.needed(store, time.time())
    files = [{"path": str(one.path), "size": one.size, "why": one.why} for one in found]
    data = {"files": files, "size": total, "done": args.yes, "needed": [asdict(one) for one in kept]}
    return _say(args, data, "\n".join([text, *map(_needed, kept)]))


def _needed(lease: Lease) -> str:
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(lease.until))
    return f"{lease.image} stays: a job of {lease.owner} needs it, until {until} at the latest"


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
    _say(args, {"files": len(wanted), "damaged": data}, "\n".join([*(one.problem for one in damaged), whole]))
    return ImageUnusable.exit_code if damaged else 0


def _name(subject: checks.Subject) -> str:
    return subject.manifest.name.partition("_")[0]


def _du(args: argparse.Namespace, store: Store) -> int:
    published = store.images()
    names = {image.path: (image.manifest.name, image.manifest.version) for image in published}
    names |= {path: ("base", path.stem) for path in sorted((store.root / BASES).glob("[!.]*.sif"))}
    found, together = usages.usage([*names])
    rows = [
        (*names[one.path], format_size(one.size), "-" if one.shared is None else format_size(one.shared))
        for one in found
    ]
    total = format_size(sum(one.size for one in found))
    total = f"{total} in {pluralize(len(found), 'file')}, {format_size(together)} on the disk"
    text = f"{table(('image', 'version', 'size', 'shared'), rows)}\n{total}" if found else "no versions"
    data = [{"path": str(one.path), "size": one.size, "shared": one.shared} for one in found]
    return _say(args, {"versions": data, "on_disk": together}, text)


def _log(args: argparse.Namespace, store: Store) -> int:
    entries = [entry for entry in log.read(store.root) if args.name in (None, entry.name)]
    rows = [
        (entry.when, f"{entry.who}@{entry.host}", entry.action, entry.name, entry.channel, entry.before, entry.version)
        for entry in entries
    ]
    head = ("when", "who", "what", "image", "channel", "from", "to")
    text = table(head, rows) if rows else "no changes yet"
    return _say(args, {"entries": [asdict(entry) for entry in entries]}, text)


def _modules(args: argparse.Namespace, store: Store) -> int:
    root, output = store.root.absolute(), args.output.absolute()
    with change(root, say) as writer:  # what channels mean stays so until it is written
        scan = writer.store.scan()
        offered = modules.modules(scan.images)
        done = modules.write(output, root, modules.files(root, offered))
    for error in scan.damaged:
        say(str(error))
    for image in scan.images:
        if not modules.nameable(image):
            say(f"{image.path} gets no module: its name is none that ctrain gives")
    rows = [(module.name, ", ".join(module.symbols)) for module in offered]
    did = f"{pluralize(len(done.written), 'file')} written, {len(done.removed)} removed; for users: module use {output}"
    data = {
        "modules": {module.name: module.symbols for module in offered},
        "written": list(map(str, done.written)),
        "removed": list(map(str, done.removed)),
    }
    return _say(args, data, "\n".join([*([table(("module", "also called"), rows)] if rows else []), did]))


def _catalogue(args: argparse.Namespace, store: Store) -> int:
    found = catalogue.gather(store)
    for problem in (*found.damaged, *(one.problem for one in found.versions if one.problem)):
        say(f"ctrain: {problem}")
    path = catalogue.write(catalogue.render(found), store, args.output, say)
    versions, total = len(found.versions), path.stat().st_size
    data = {"file": str(path), "versions": versions, "size": total}
    return _say(args, data, f"{path} has {pluralize(versions, 'version')} ({format_size(total)})")


def _say(args: argparse.Namespace, data: object, text: str) -> int:
    print(json.dumps(data, indent=2) if args.json else text)
    return 0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days")
    return days


def _look(args: argparse.Namespace, _: Store) -> int:
    return images.execute(args)


_ACTIONS = {
    "list": _look,
    "show": _look,
    "diff": _look,
    "promote": _promote,
    "rollback": _rollback,
    "retire": _retire,
    "restore": _restore,
    "gc": _gc,
    "verify": _verify,
    "du": _du,
    "log": _log,
    "modules": _modules,
    "catalogue": _catalogue,
}

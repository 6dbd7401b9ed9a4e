"""`ctrain store scan`, `deprecate` and `retain`: what is asked of versions, and how long they are offered."""

from __future__ import annotations

import argparse
import datetime
import time
from dataclasses import asdict

from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.options import add_dry_run, add_yes
from ctrain_builder.cli.store.common import GOES_LATER, AddAction, show
from ctrain_builder.files.manifest_writer import utc_now
from ctrain_builder.store import deprecate, retention, scan
from ctrain_builder.store.inventory import check_names
from ctrain_builder.store.refresh import change
from ctrain_runtime.base.text import format_size, table
from ctrain_runtime.errors import GateNotPassed, StoreError, UsageError
from ctrain_runtime.store import policy
from ctrain_runtime.store.notes import CLEAN, FAILED
from ctrain_runtime.store.references import join, join_all
from ctrain_runtime.store.store import Store


def add_actions(add: AddAction) -> None:
    action = add("scan", "have the scanner of policy.yaml examine published versions", _scan)
    action.add_argument("images", nargs="*", metavar="NAME[:VERSION]", help="default: all published versions")
    notice = add("deprecate", "announce that a version will go: users see it when they run or load it", _deprecate)
    notice.add_argument("name", metavar="NAME:VERSION")
    notice.add_argument("version", nargs="?", metavar="VERSION", help="NAME VERSION is the same as NAME:VERSION")
    notice.add_argument(
        "--until", type=_date, metavar="DATE", help="the last day on which it is to be used: 2027-03-31"
    )
    notice.add_argument("--use", default="", metavar="OTHER", help="what to use instead: NAME:VERSION or NAME:CHANNEL")
    notice.add_argument("--reason", default="", metavar="TEXT", help="for users and the log")
    notice.add_argument("--undo", action="store_true", help="it is no longer deprecated")
    add_dry_run(notice)
    text = "retire versions by the retention rules of policy.yaml, and those deprecated until a day that has passed"
    add_yes(add("retain", text, _retain))


def _date(text: str) -> datetime.date:
    try:
        return retention.parse_date(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a date such as 2027-03-31, not {text!r}") from None


def _deprecate(args: argparse.Namespace, store: Store) -> int:
    reference = join(args.name, args.version)
    if args.undo:
        return _undo(args, store, reference)
    if args.until is None or not args.reason.strip():
        hint = f"As in: ctrain store deprecate {reference} --until 2027-03-31 --use NAME:prod --reason 'has old NCCL'"
        raise UsageError("--until and --reason are needed", hint)
    if args.until.isoformat() < utc_now()[:10]:
        raise UsageError(f"--until {args.until} has passed", "Take it out of use at once: ctrain store withdraw")
    image = deprecate.find(store, reference, args.use)
    if not args.dry_run:
        with change(store, print_note) as writer:
            image = deprecate.deprecate(writer, reference, args.until, args.use, args.reason.strip())
    name = image.manifest.reference
    data = {"deprecated": name, "until": args.until.isoformat(), "use": args.use, "done": not args.dry_run}
    then = f"afterwards: ctrain store retain; no longer: ctrain store deprecate {name} --undo"
    is_now = "would be" if args.dry_run else "is"
    return show(args, data, f"{name} {is_now} deprecated until {args.until}; {then}")


def _undo(args: argparse.Namespace, store: Store, reference: str) -> int:
    image = deprecate.find(store, reference, "")
    if not args.dry_run:
        with change(store, print_note) as writer:
            image = deprecate.undo(writer, reference)
    is_now = "would no longer be" if args.dry_run else "is no longer"
    data = {"undone": image.manifest.reference, "done": not args.dry_run}
    return show(args, data, f"{image.manifest.reference} {is_now} deprecated")


def _retain(args: argparse.Namespace, store: Store) -> int:
    if args.yes:
        with change(store, print_note) as writer:
            surplus = retention.retire(writer, time.time())
    else:
        surplus = retention.surplus(store, policy.load(store.root).retention, time.time())
    going = [one for one in surplus if not one.needed_by]
    did = "retired" if args.yes else "would retire"
    lines = [
        f"{did} {one.image.manifest.reference} ({format_size(one.image.manifest.size)}): {one.why}" for one in going
    ]
    kept = [one for one in surplus if one.needed_by]
    lines += [f"kept {one.image.manifest.reference} ({one.why}): {', '.join(one.needed_by)}" for one in kept]
    lines.append("nothing to retire" if not going else GOES_LATER if args.yes else "confirm with --yes")
    data = {
        "retired": [{"image": one.image.manifest.reference, "why": one.why} for one in going],
        "kept": [{"image": one.image.manifest.reference, "why": one.why, "needed_by": one.needed_by} for one in kept],
        "done": args.yes,
    }
    return show(args, data, "\n".join(lines))


def _scan(args: argparse.Namespace, store: Store) -> int:
    scanner = scan.require_scanner(store.root)
    images, names = store.images(), join_all(args.images)
    known = {word for image in images for word in (image.manifest.name, image.manifest.reference)}
    check_names(store, names, known)
    wanted = [one for one in images if not names or {one.manifest.name, one.manifest.reference} & {*names}]
    scans = scan.scan_all(store, wanted, scanner, print_note)
    rows = [(name, one.verdict, str(one.code), one.output[-1] if one.output else "") for name, one in scans]
    text = table(("version", "verdict", "exit code", "last line"), rows) if rows else "no versions"
    show(args, {"scans": [{"image": name, **asdict(one)} for name, one in scans]}, text)
    verdicts = {one.verdict for _, one in scans}
    if FAILED in verdicts:
        return StoreError.exit_code
    return GateNotPassed.exit_code if verdicts - {CLEAN} else 0

"""`ctrain store promote`, `rollback` and `channel rm`: what channels point to."""

from __future__ import annotations

import argparse

from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.options import add_dry_run, add_yes
from ctrain_builder.cli.store.common import AddAction, show
from ctrain_builder.store import channels
from ctrain_builder.store.channels import Move
from ctrain_builder.store.refresh import change
from ctrain_runtime.errors import UsageError
from ctrain_runtime.store.references import join, select
from ctrain_runtime.store.store import DEFAULT_CHANNEL, Store


def add_actions(add: AddAction) -> None:
    promote = add("promote", "make a channel point to a version", _promote)
    promote.add_argument("name", metavar="NAME", help="or NAME:VERSION, without VERSION")
    promote.add_argument("version", metavar="VERSION", help="a version, a digest, or a channel that points to it")
    promote.add_argument("channel", nargs="?", metavar="CHANNEL")
    rollback = add("rollback", "move a channel back to its previous version", _rollback)
    rollback.add_argument("name", metavar="NAME")
    rollback.add_argument("channel", metavar="CHANNEL")
    for action in (promote, rollback):
        add_dry_run(action)
    channel = add("channel", "remove a channel: channel rm NAME CHANNEL", _remove)
    channel.add_argument("verb", choices=["rm"], metavar="rm")
    channel.add_argument("name", metavar="NAME")
    channel.add_argument("channel", metavar="CHANNEL")
    channel.add_argument("--why", default="", metavar="TEXT", help="for the log")
    add_yes(channel)


def _promote(args: argparse.Namespace, store: Store) -> int:
    reference, channel = join(args.name, args.version), args.channel
    if channel is None:
        reference, channel = args.name, args.version
        if not {":", "@"} & set(reference):
            raise UsageError("no channel given", f"As in: ctrain store promote {reference} VERSION prod")
    channels.check(channel)
    if args.dry_run:
        return _show_move(args, channel, channels.promotion(store, reference, channel))
    with change(store, print_note) as writer:
        move = channels.promote(writer, reference, channel)
    return _show_move(args, channel, move)


def _rollback(args: argparse.Namespace, store: Store) -> int:
    name, channel = args.name, args.channel
    channels.check(channel)
    if args.dry_run:
        earlier = channels.earlier_version(store, name, channel)
        return _show_move(args, channel, Move(earlier, channels.pointed(store.root, name, channel)))
    with change(store, print_note) as writer:
        move = channels.rollback(writer, name, channel)
    return _show_move(args, channel, move)


def _show_move(args: argparse.Namespace, channel: str, move: Move) -> int:
    name, now, before = move.image.manifest.name, move.image.manifest.version, move.before
    was = "unchanged" if before == now else f"it was {before}" if before else "it is new"
    data = {"name": name, "channel": channel, "before": before, "version": now, "done": not args.dry_run}
    return show(args, data, f"channel {channel} of {name} {'would be' if args.dry_run else 'is'} {now} ({was})")


def _remove(args: argparse.Namespace, store: Store) -> int:
    channels.require(store.root, args.name, args.channel)
    before = channels.pointed(store.root, args.name, args.channel)
    data = {"name": args.name, "channel": args.channel, "before": before, "done": args.yes}
    what = f"channel {args.channel} of {args.name} (it points to {before or 'nothing'})"
    if not args.yes:
        return show(args, data, f"would remove {what}; confirm with --yes")
    with change(store, print_note) as writer:
        channels.remove(writer, args.name, args.channel, args.why)
        now = select(writer.store.scan(), args.name) if args.channel == DEFAULT_CHANNEL else None
    text = f"channel {args.channel} of {args.name} is removed (it was {before or 'nothing'})"
    return show(args, data, f"{text}; {args.name} now resolves to {now.manifest.version}" if now else text)

"""`ctrain store promote`, `rollback` and `channel rm`: what channels point to."""

from __future__ import annotations

import argparse

from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.store.common import AddAction, show
from ctrain_builder.store import channels
from ctrain_builder.store.refresh import refresh
from ctrain_builder.store.writer import lock_store
from ctrain_runtime.references import select
from ctrain_runtime.store import DEFAULT_CHANNEL, Store


def add_actions(add: AddAction) -> None:
    promote = add("promote", "make a channel point to a version", _promote)
    promote.add_argument("name", metavar="NAME")
    promote.add_argument("version", metavar="VERSION", help="a version, a digest, or the channel that means it now")
    promote.add_argument("channel", metavar="CHANNEL")
    rollback = add("rollback", "make a channel point to what it pointed to before", _rollback)
    rollback.add_argument("name", metavar="NAME")
    rollback.add_argument("channel", metavar="CHANNEL")
    channel = add("channel", "remove a channel: channel rm NAME CHANNEL", _remove)
    channel.add_argument("verb", choices=["rm"], metavar="rm")
    channel.add_argument("name", metavar="NAME")
    channel.add_argument("channel", metavar="CHANNEL")
    channel.add_argument("--why", default="", metavar="TEXT", help="for the log")


def _promote(args: argparse.Namespace, store: Store) -> int:
    with lock_store(store.root, print_note) as writer:
        before, image = channels.promote(writer, args.name, args.version, args.channel)
    return _moved(args, store, before, image.manifest.version)


def _rollback(args: argparse.Namespace, store: Store) -> int:
    with lock_store(store.root, print_note) as writer:
        before, image = channels.rollback(writer, args.name, args.channel)
    return _moved(args, store, before, image.manifest.version)


def _remove(args: argparse.Namespace, store: Store) -> int:
    with lock_store(store.root, print_note) as writer:
        before = channels.remove(writer, args.name, args.channel, args.why)
        now = select(writer.store.scan(), args.name) if args.channel == DEFAULT_CHANNEL else None
    refresh(store, print_note)
    text = f"channel {args.channel} of {args.name} is removed (it was {before or 'nothing'})"
    if now:
        text += f"; {args.name} alone now means {now.manifest.version}"
    return show(args, {"name": args.name, "channel": args.channel, "before": before}, text)


def _moved(args: argparse.Namespace, store: Store, before: str, now: str) -> int:
    refresh(store, print_note)
    was = "it was that already" if before == now else f"it was {before}" if before else "it is new"
    data = {"name": args.name, "channel": args.channel, "before": before, "version": now}
    return show(args, data, f"channel {args.channel} of {args.name} is {now} ({was})")

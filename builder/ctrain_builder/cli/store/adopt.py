"""`ctrain store adopt`: image files that ctrain did not build become versions of the store."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from ctrain_builder.cli.bar import Bar, print_note
from ctrain_builder.cli.options import add_yes
from ctrain_builder.cli.store.common import AddAction, show
from ctrain_builder.image import sbom
from ctrain_builder.store import adopt, adopted_name, channels
from ctrain_builder.store.adopt import Adoption, Plan, Request
from ctrain_builder.store.publish import CopyObserver
from ctrain_runtime.base.text import format_size, table
from ctrain_runtime.cli.output import Activity
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import GateNotPassed
from ctrain_runtime.store.store import Store

_HEAD = ("file", "image", "channel", "size", "torch", "CUDA", "")


def add_actions(add: AddAction) -> None:
    action = add("adopt", "bring image files that ctrain did not build into the store", _adopt)
    action.add_argument(
        "files",
        nargs="+",
        metavar="[NAME:TAG-STACK=]FILE",
        help="a .sif file; unless given, its name tells NAME:TAG-STACK: pytorch_22.03-hd-py3.sif is pytorch:22.03-hd",
    )
    action.add_argument("--channel", metavar="CHANNEL", help="also make this channel point to the newest of each image")
    add_yes(action)


def _adopt(args: argparse.Namespace, store: Store) -> int:
    if args.channel is not None:
        channels.check(args.channel)
    requests = [_request(text) for text in args.files]
    sbom.require()
    engine = find_engine()
    plan = adopt.plan(store, requests, engine, Activity(sys.stderr).report).with_channel(args.channel or "")
    if args.yes:
        plan = adopt.carry_out(plan, store, engine, _copying)
    for file, error in plan.left_out:
        left = "" if isinstance(error, GateNotPassed) else "left out: "
        print_note(f"ctrain: {left}{'' if str(file) in error.message else f'{file}: '}{error}")
    show(args, _as_data(plan, args.yes), _as_text(plan, store, args.yes))
    return plan.left_out[0][1].exit_code if plan.left_out else 0


def _request(text: str) -> Request:
    """A file, or NAME:TAG-STACK=FILE; a file whose name has a `=` is one. Raises UsageError."""
    name, equals, file = text.partition("=")
    if not equals or Path(text).exists():
        return Request(Path(text))
    return Request(Path(file), adopted_name.parse(name))


@contextlib.contextmanager
def _copying(adoption: Adoption) -> Iterator[CopyObserver]:
    with Bar(f"copying {adoption.file.name}", adoption.manifest.size) as bar:
        yield CopyObserver(print_note, bar.at)


def _as_data(plan: Plan, done: bool) -> dict[str, object]:
    listed = [
        {
            "file": str(one.file),
            "image": one.manifest.reference,
            "channel": one.channel,
            "new_version": not one.is_known,
        }
        for one in plan.adoptions
    ]
    left_out = [{"file": str(file), "why": str(error)} for file, error in plan.left_out]
    return {"adopted": listed, "left_out": left_out, "done": done}


def _as_text(plan: Plan, store: Store, done: bool) -> str:
    if not plan.adoptions:
        return "nothing to adopt"
    text = table(_HEAD, [_row(one, done) for one in plan.adoptions])
    last = plan.adoptions[-1]
    if done:
        where = shlex.join(["--store", str(store.root), "--image", last.manifest.reference])
        return f"{text}\nrun one as: ctrain run {where} -- python train.py"
    return f"{text}\nto name one otherwise: NAME:TAG-STACK={shlex.quote(str(last.file))}; confirm with --yes"


def _row(one: Adoption, done: bool) -> tuple[str, ...]:
    manifest = one.manifest
    state = "there already" if one.is_known else "adopted" if done else "new"
    facts = (manifest.software.get("torch", "-"), manifest.software.get("cuda", "-"))
    return (str(one.file), manifest.reference, one.channel, format_size(manifest.size), *facts, state)

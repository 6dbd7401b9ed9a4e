"""The action `ctrain store sync`, apart from the others because it needs a client of registries."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional, Union

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.bar import Bar, print_note
from ctrain_builder.store import mirror, sync
from ctrain_builder.store.archive import SUFFIX, ArchiveSource, ArchiveTarget
from ctrain_builder.store.endpoints import SCHEME, RegistryEndpoint, Source, StoreEndpoint, Target
from ctrain_builder.store.publish import CopyObserver
from ctrain_builder.store.refresh import change
from ctrain_runtime.base.paths import store_path
from ctrain_runtime.base.text import format_size, pluralize
from ctrain_runtime.errors import (
    ConfigError,
    CtrainError,
    GateNotPassed,
    ImageNotFound,
    ImageTestError,
    ImageUnusable,
    StoreError,
    UsageError,
)
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from ctrain_runtime.store import policy
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.references import join_all
from ctrain_runtime.store.store import Store, open_store


@dataclass(frozen=True)
class _Request:
    """What is to be copied. `redistribute`: why what is not to be passed on is passed on."""

    images: Sequence[str]
    channels: bool
    dry_run: bool
    redistribute: Optional[str] = None


def execute(args: argparse.Namespace) -> int:
    client = RegistryClient(os.environ)
    source = _place(args.source, client, args.cache) or ArchiveSource(Path(args.source))
    target = _place(args.target, client, args.cache) or ArchiveTarget(Path(args.target))
    wanted = _Request(join_all(args.images), args.channels, args.dry_run, args.redistribute)
    return _sync(source, target, wanted, args.json)


def _sync(source: Source, target: Target, wanted: _Request, as_json: bool) -> int:
    try:
        if wanted.redistribute is not None:
            _check_reason(wanted.redistribute, source)
        redistribute = wanted.redistribute is not None
        plan = sync.plan(source, target, wanted.images, wanted.channels, redistribute=redistribute)
        for left_out in plan.left_out:
            print_note(f"ctrain: left out: {left_out}")
        failed: list[CtrainError] = []
        if not wanted.dry_run:
            plan, failed = sync.carry_out(plan, source, target, wanted.redistribute, print_note, _copying)
    except BaseException as error:
        if isinstance(target, ArchiveTarget):
            target.discard()
        if isinstance(error, Unreachable) and "--offline" in error.hint:  # which is for builds
            raise Unreachable(error.message, "Retry later: it resumes") from error
        raise
    for problem in failed:
        print_note(f"ctrain: {problem}")
    plan = replace(plan, left_out=(*plan.left_out, *failed))
    print(json.dumps(_as_data(plan, wanted.dry_run), indent=2) if as_json else _as_text(plan, target, wanted.dry_run))
    return _exit_code(plan.left_out)


@contextlib.contextmanager
def _copying(manifest: Manifest) -> Iterator[CopyObserver]:
    with Bar(f"copying {_title(manifest)}", manifest.size) as bar:
        yield CopyObserver(print_note, bar.at)


def follow(args: argparse.Namespace, target: Store) -> int:
    """`ctrain store mirror`: copy what the declared source has, then take out what it no longer offers."""
    declared = mirror.declared(target.root)
    source = open_store(store_path(declared.source))
    if source.root.resolve() == target.root.resolve():
        raise UsageError(f"store {target.root} is declared a mirror of itself", f"Correct {target.root / policy.FILE}")
    wanted = _Request(declared.images, channels=True, dry_run=not args.yes)
    try:
        code = _sync(StoreEndpoint(source.root), StoreEndpoint(target.root), wanted, args.json)
    except ImageNotFound as error:  # the last version may have been withdrawn there: that must follow
        print_note(f"ctrain: {error}")
        code = error.exit_code
    if args.yes:
        with change(target, print_note) as writer:
            found = mirror.follow(writer, source)
    else:
        found = mirror.behind(source, target)
    for one in found:
        name = one.image.manifest.reference
        did = "withdrew" if one.withdrawn else "retired"
        did = did if args.yes else f"would have {did.replace('withdrew', 'withdrawn')}"
        why = f": {one.withdrawn}" if one.withdrawn else f", as in {source.root}"
        kept = f"{name} is retired in {source.root}, and stays: {', '.join(one.needed_by)}"
        print_note(kept if one.needed_by else f"{did} {name}{why}")
    if not args.yes:
        print_note("confirm with --yes")
    return code


def _check_reason(reason: str, source: Source) -> None:
    """Raises UsageError."""
    if not reason.strip():
        raise UsageError("--redistribute must not be empty", "The log of SRC keeps this reason")
    if not isinstance(source, StoreEndpoint):
        raise UsageError(f"--redistribute is kept in the log of SRC, and {source} has none", "Copy from a store")


def _exit_code(problems: Sequence[CtrainError]) -> int:
    """0 if all that was left out are images that ctrain did not make."""
    if any(isinstance(error, (ConfigError, ImageUnusable)) for error in problems):
        return ImageUnusable.exit_code
    own = (error.exit_code for error in problems if isinstance(error, (ImageTestError, StoreError, GateNotPassed)))
    return next(own, 0)


def _place(text: str, client: RegistryClient, cache: Any) -> Optional[Union[RegistryEndpoint, StoreEndpoint]]:
    """None for an archive."""
    if text.endswith(SUFFIX) and not Path(text).is_dir():
        return None
    if text.startswith(SCHEME):
        return RegistryEndpoint(text[len(SCHEME) :], client, open_cache(cache).root)
    return StoreEndpoint(store_path(text))


def _as_data(plan: sync.Plan, dry_run: bool) -> dict[str, Any]:
    groups = {"copied": plan.copies, "present": plan.present, "retired": plan.retired}
    listed = {key: [one.reference for one in found] for key, found in groups.items()}
    moves = [
        {"name": one.manifest.name, "channel": one.channel, "before": one.before, "version": one.manifest.version}
        for one in plan.moves
    ]
    return {**listed, "channels": moves, "left_out": [str(one) for one in plan.left_out], "done": not dry_run}


def _as_text(plan: sync.Plan, target: Target, dry_run: bool) -> str:
    would = "would have " if dry_run else ""
    lines = [f"{would}copied {_title(one)} ({format_size(one.size)})" for one in plan.copies]
    lines += [f"{_title(one)} stays retired in {target}" for one in plan.retired]
    for move in plan.moves:
        was = f"it was {move.before}" if move.before else "it is new"
        is_now = "would be" if dry_run else "is"
        lines.append(f"channel {move.channel} of {move.manifest.name} {is_now} {move.manifest.version} ({was})")
    total = sum(one.size for one in plan.copies)
    number, did = pluralize(len(plan.copies), "version"), "to copy" if dry_run else "copied"
    return "\n".join([*lines, f"{number} {did} ({format_size(total)}), {len(plan.present)} there already"])


def _title(manifest: Manifest) -> str:
    return f"{manifest.name} {manifest.version}"

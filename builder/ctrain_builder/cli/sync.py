"""The action `ctrain store sync`, apart from the others because it needs a client of registries."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.bar import Bar, print_note
from ctrain_builder.store import mirror, sync
from ctrain_builder.store.archive import SUFFIX, ArchiveSource, ArchiveTarget
from ctrain_builder.store.endpoints import SCHEME, RegistryEndpoint, StoreEndpoint
from ctrain_builder.store.publish import CopyObserver
from ctrain_runtime.base.paths import store_path
from ctrain_runtime.base.text import format_size, pluralize
from ctrain_runtime.errors import ConfigError, CtrainError, GateNotPassed, ImageTestError, ImageUnusable, StoreError
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from ctrain_runtime.store.manifest import Manifest
from ctrain_runtime.store.references import join_all
from ctrain_runtime.store.store import Store


def execute(args: argparse.Namespace) -> int:
    client = RegistryClient(os.environ)
    source = _place(args.source, client, args.cache) or ArchiveSource(Path(args.source))
    target = _place(args.target, client, args.cache) or ArchiveTarget(Path(args.target))
    wanted = sync.Request(join_all(args.images), args.channels, args.dry_run, args.redistribute)
    try:
        return _show(sync.run(source, target, wanted, print_note, _copying), args, str(target), args.dry_run)
    except Unreachable as error:
        if "--offline" in error.hint:  # which is for builds
            raise Unreachable(error.message, "Retry later: it resumes") from error
        raise


def _show(plan: sync.Plan, args: argparse.Namespace, target: str, dry_run: bool) -> int:
    print(json.dumps(_as_data(plan, dry_run), indent=2) if args.json else _as_text(plan, target, dry_run))
    return _exit_code(plan.left_out)


@contextlib.contextmanager
def _copying(manifest: Manifest) -> Iterator[CopyObserver]:
    with Bar(f"copying {_title(manifest)}", manifest.size) as bar:
        yield CopyObserver(print_note, bar.at)


def follow(args: argparse.Namespace, target: Store) -> int:
    """`ctrain store mirror`."""
    result = mirror.run(target, not args.yes, print_note, _copying)
    code = _show(result.copied, args, str(target.root), not args.yes)
    for reference in result.ended:
        print_note(f"{result.source} no longer offers {reference}")
    for one in result.taken_out:
        name = one.image.manifest.reference
        did = "withdrew" if one.withdrawn else "retired"
        did = did if args.yes else f"would have {did.replace('withdrew', 'withdrawn')}"
        why = f": {one.withdrawn}" if one.withdrawn else f", as in {result.source}"
        kept = f"{name} is retired in {result.source}, and stays: {', '.join(one.needed_by)}"
        print_note(kept if one.needed_by else f"{did} {name}{why}")
    if not args.yes:
        print_note("confirm with --yes")
    return code


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
    listed = {key: [one.reference for one in versions] for key, versions in groups.items()}
    moves = [
        {"name": one.manifest.name, "channel": one.channel, "before": one.before, "version": one.manifest.version}
        for one in plan.moves
    ]
    return {**listed, "channels": moves, "left_out": [str(one) for one in plan.left_out], "done": not dry_run}


def _as_text(plan: sync.Plan, target: str, dry_run: bool) -> str:
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

"""Show and shrink the cache of builds. Everything in it can be built again.

  ctrain cache list                # layers, what they have compiled, images, and which images need them
  ctrain cache du                  # sizes
  ctrain cache prune               # list what no image needs any more; --yes removes it
  ctrain cache clear               # the same for everything

What a running build uses stays, and so does every file that ctrain did not make.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from ctrain_builder.cache import cache_space, upkeep
from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_root import find_cache, open_cache
from ctrain_builder.cache.upkeep import Entry
from ctrain_builder.cli.options import add_yes, cache_directory, days
from ctrain_runtime.base.text import format_duration, format_size, pluralize, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, run: Callable[[argparse.Namespace, Cache], int]) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, allow_abbrev=False)
        action.add_argument(
            "--cache", type=cache_directory, metavar="DIR", help="the cache ($CTRAIN_CACHE, /var/tmp/ctrain-UID)"
        )
        action.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        action.set_defaults(run=run)
        return action

    add("list", "list layers, what they have compiled, and images", _list)
    add("du", "show sizes", _du)
    prune = add("prune", "remove what no image needs any more", _prune)
    prune.add_argument("--unused-for", type=days, metavar="DAYS", help="also what no build has used for this long")
    clear = add("clear", "remove everything", _clear)
    for action in (prune, clear):
        add_yes(action)


def execute(args: argparse.Namespace) -> int:
    cache = find_cache(args.cache)  # looking writes nothing
    if "yes" in args and args.yes and cache.root.exists():
        cache = open_cache(args.cache)
    return int(args.run(args, cache))


def _list(args: argparse.Namespace, cache: Cache) -> int:
    return _show(args, upkeep.entries(cache), "the cache is empty", "")


def _du(args: argparse.Namespace, cache: Cache) -> int:
    sizes = upkeep.sizes(cache)
    if args.json:
        print(json.dumps({"sizes": sizes, "free": cache_space.free(cache)}, indent=2))
        return 0
    rows = [(name, format_size(size)) for name, size in sizes.items()]
    print(table(("directory", "size"), [*rows, ("total", format_size(sum(sizes.values())))]))
    print(f"{cache.root}: {format_size(cache_space.free(cache))} free")
    return 0


def _prune(args: argparse.Namespace, cache: Cache) -> int:
    limit = float("-inf") if args.unused_for is None else time.time() - args.unused_for * 86400
    due = [entry for entry in upkeep.entries(cache) if not entry.images or entry.used < limit]
    if args.yes and cache.root.exists():
        due = upkeep.remove(cache, due)
        cache.work.sweep()
    return _show(args, due, "nothing to remove", _summary(args, due))


def _clear(args: argparse.Namespace, cache: Cache) -> int:
    due = upkeep.entries(cache)
    if args.yes and cache.root.exists():
        upkeep.clear(cache)
        left = {entry.path for entry in upkeep.entries(cache)}
        due = [entry for entry in due if entry.path not in left]
    return _show(args, due, "nothing to remove", _summary(args, due))


def _summary(args: argparse.Namespace, due: Sequence[Entry]) -> str:
    what = f"{pluralize(len(due), 'file')} ({format_size(sum(entry.size for entry in due))})"
    return f"removed {what}" if args.yes else f"{what}; confirm with --yes"


def _show(args: argparse.Namespace, entries: Sequence[Entry], nothing: str, summary: str) -> int:
    if args.json:
        rows = [{**asdict(entry), "path": str(entry.path)} for entry in entries]
        done = {"done": args.yes} if "yes" in args else {}
        print(json.dumps({"entries": rows, **done}, indent=2))
        return 0
    head = ("kind", "name", "size", "used", "needed by")
    lines = [
        (
            entry.kind,
            entry.name,
            format_size(entry.size),
            f"{format_duration(max(0.0, time.time() - entry.used))} ago",
            " ".join(entry.images) or "no image",
        )
        for entry in entries
    ]
    print("\n".join(filter(None, (table(head, lines) if lines else nothing, summary if lines else ""))))
    return 0

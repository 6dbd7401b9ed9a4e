"""Show, check and make sites: the profiles of clusters. See: ctrain help sites

  ctrain site list                  # all sites, and which one applies here
  ctrain site show                  # all keys of the site that applies here
  ctrain site show neuron --why     # ... of another site, and why: the file, and what its author has it from
  ctrain site check                 # check all files, and this site: its directories, and its file against it
  ctrain site init --dry-run        # show a first file for this cluster; without --dry-run, write it

SITE is a name or the path of a site file. `check` exits with 67 if a check fails or the file differs from the site.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctrain_runtime.base.text import table
from ctrain_runtime.cli.doctor import report
from ctrain_runtime.doctor import Finding
from ctrain_runtime.doctor.compare import compare
from ctrain_runtime.doctor.profile import make_profile
from ctrain_runtime.doctor.sites import check_files, check_selection, check_site
from ctrain_runtime.errors import CtrainError, SiteError
from ctrain_runtime.site.evidence import explain
from ctrain_runtime.site.files import LEVEL_NAMES, site_paths
from ctrain_runtime.site.layers import Level
from ctrain_runtime.site.select import DEFAULT, load_site, select_site
from ctrain_runtime.starting_points.templates import write_new

WHY_HEAD = ("key", "value", "set in", "rests on, read on")
LEGEND = """\
set in    the file and its level, or a variable; default: in no file
rests on  documented: the site's documentation; excerpt: a part of it; user: what one of its users publishes;
          memory: its author's; unverified: a guess"""
WIDEST = 40  # of a column, so that a long value moves only its own line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|show|check|init")
    listing = actions.add_parser("list", help="list all sites", allow_abbrev=False)
    show = actions.add_parser("show", help="show the keys of a site", allow_abbrev=False)
    check = actions.add_parser("check", help="check files, programs and directories", allow_abbrev=False)
    init = actions.add_parser("init", help="write a first site file from what is detected here", allow_abbrev=False)
    init.add_argument("name", nargs="?", default="", metavar="NAME", help="(default: the name of the cluster or host)")
    init.add_argument("--dry-run", action="store_true", help="print the file instead of writing it")
    for action in (show, check):
        action.add_argument("site", nargs="?", default="", metavar="SITE", help="(default: the one that applies here)")
    show.add_argument("--why", action="store_true", help="add where each value comes from, and what it rests on")
    check.add_argument(
        "--image", default="", metavar="IMAGE", help="look for NCCL's plugin and its libraries in this image"
    )
    for action in (listing, show, check):
        action.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    if args.action == "check":
        return _check(args)
    if args.action == "init":
        return _init(args)
    print(_list(args) if args.action == "list" else _show(args))
    return 0


def _init(args: argparse.Namespace) -> int:
    path, text = make_profile(select_site(), args.name)
    if args.dry_run:
        print(text, end="")
        return 0
    write_new(path, text, "See what it would be: --dry-run")
    print(f"wrote {path}\nread it, then check it with: ctrain site check {path.stem}")
    return 0


def _list(args: argparse.Namespace) -> str:
    selected = select_site()
    rows = [_describe(name, paths) for name, paths in sorted(site_paths().items())]
    if args.json:
        here = {"name": selected.site.name, "reason": selected.reason}
        sites = [dict(zip(("name", "scheduler", "layers", "description"), row)) for row in rows]
        return json.dumps({"selected": here, "sites": sites}, indent=2)
    listing = table(("site", "scheduler", "layers", "description"), rows)
    return f"{listing}\n\napplies here: {selected.site.name} ({selected.reason})"


def _describe(name: str, paths: Mapping[Level, Path]) -> tuple[str, str, str, str]:
    layers = ", ".join(LEVEL_NAMES[level] for level in paths)
    try:
        site, _ = load_site(name)
    except CtrainError as error:
        return name, "-", layers, f"invalid: {error.message}"
    return name, site.scheduler, layers, site.description


def _show(args: argparse.Namespace) -> str:
    selected = select_site(args.site)
    evidence = explain(selected.layers, selected.sources) if args.json or args.why else {}
    if args.json:
        keys = {"reason": selected.reason, "explicit": selected.explicit, "sources": dict(selected.sources)}
        return json.dumps({"site": asdict(selected.site), **keys, "evidence": evidence}, indent=2)
    rows = [
        (key, value, selected.sources.get(key, DEFAULT), evidence.get(key, "")) if args.why else (key, value)
        for key, value in _flatten(asdict(selected.site))
    ]
    if not args.why:
        return table(rows[0], rows[1:], widest=WIDEST)
    return f"{table(WHY_HEAD, rows, widest=WIDEST)}\n\n{LEGEND}"


def _flatten(keys: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each key with its value as text; a mapping that has entries gets a line per entry."""
    for key, value in keys.items():
        if isinstance(value, dict) and value:
            yield from ((f"{key}.{entry}", _as_text(item)) for entry, item in value.items())
        else:
            yield key, _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value or "-"
    return json.dumps(value) if value or isinstance(value, bool) else "-"


def _check(args: argparse.Namespace) -> int:
    findings = [] if args.site else list(check_files())
    try:
        selected = select_site(args.site)
        findings.append(check_selection(selected))
        findings += check_site(selected)
        findings += compare(selected, args.image)
    except CtrainError as error:
        findings.append(Finding("site", "fail", error.message, error.hint))
    return SiteError.exit_code if report(findings, as_json=args.json) else 0

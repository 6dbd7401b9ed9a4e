"""Looks for what is wrong here. So far: whether the stores are whole, and who can change them.

  ctrain doctor                        the stores of this site
  ctrain doctor --store /apps/ctrain   this one

The exit code is 0 when nothing has failed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from ctrain_runtime.cli.stores import store_dirs
from ctrain_runtime.cli.text import table
from ctrain_runtime.doctor import stores
from ctrain_runtime.doctor.finding import Finding
from ctrain_runtime.errors import StoreError
from ctrain_runtime.site import select_site


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help="store to look at (default: $CTRAIN_STORE, then the site's)")
    parser.add_argument("--site", metavar="SITE", help="name or file of a site (default: $CTRAIN_SITE, then detected)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    selected = select_site(args.site or "", {"store": args.store})
    roots = store_dirs(selected)
    findings = [finding for root in roots for finding in stores.look(Path(root))]
    if not roots:
        text = f"site {selected.site.name} names none"
        findings = [Finding("stores", "warn", text, "Name one with --store DIR, CTRAIN_STORE or in the site's file")]
    if args.json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        first, *others = [(one.subject, one.level, one.text, one.hint) for one in findings]
        print(table(first, others))
    return StoreError.exit_code if any(finding.level == "fail" for finding in findings) else 0

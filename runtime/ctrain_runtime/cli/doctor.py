"""Check this installation for problems: so far, whether stores are complete, and who can change them.

  ctrain doctor                        check the stores of this site
  ctrain doctor --store /apps/ctrain   check this store

Exits with 0 if no check fails.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ctrain_runtime.cli.run_options import add_site
from ctrain_runtime.doctor import Finding, stores
from ctrain_runtime.errors import StoreError
from ctrain_runtime.site import select_site
from ctrain_runtime.text import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help="store to check (default: $CTRAIN_STORE, then the site's)")
    add_site(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    selected = select_site(args.site or "", {"store": args.store})
    roots = selected.store_dirs()
    findings = [finding for root in roots for finding in stores.check_store(Path(root))]
    if not roots:
        hint = "Pass --store DIR, set CTRAIN_STORE, or add `stores` to the site file"
        findings = [Finding("stores", "warn", f"site {selected.site.name} has no store configured", hint)]
    return StoreError.exit_code if report(findings, as_json=args.json) else 0


def report(findings: Sequence[Finding], *, as_json: bool) -> bool:
    """Print at least one finding; returns whether a check failed."""
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        first, *others = [(finding.subject, finding.level, finding.text, finding.hint) for finding in findings]
        print(table(first, others))
    return any(finding.level == "fail" for finding in findings)

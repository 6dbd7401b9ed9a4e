"""Check this machine, the site and its stores for problems, on a login node or in a job on a compute node.

  ctrain doctor                          # check engine, scheduler, network, directories, clocks and stores
  ctrain doctor --image pytorch:prod     # ... and whether this image can run here
  ctrain doctor --store /apps/ctrain     # check only this store

Exits with 0 if no check fails; else with 70, or with 76 for --store.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from ctrain_runtime.base.text import table
from ctrain_runtime.cli.run_options import add_site
from ctrain_runtime.cluster.model import Cluster
from ctrain_runtime.doctor import Finding, stores
from ctrain_runtime.doctor.cluster import check_cluster
from ctrain_runtime.doctor.directories import check_directories
from ctrain_runtime.doctor.engines import check_engine
from ctrain_runtime.doctor.fabric import check_fabric
from ctrain_runtime.doctor.images import check_image
from ctrain_runtime.doctor.sites import check_selection
from ctrain_runtime.errors import CtrainError, StoreError
from ctrain_runtime.site.files import site_dirs
from ctrain_runtime.site.layers import Level
from ctrain_runtime.site.select import SelectedSite, select_site

WIDEST = 60  # characters of a text for which the hints of others make room


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", help="check only this store")
    add_site(parser)
    parser.add_argument("--image", default="", metavar="IMAGE", help="also check this image: its name, or a .sif")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    selected = select_site(args.site or "", {"store": args.store})
    findings = list(_check_stores(selected))
    if args.store:
        return StoreError.exit_code if report(findings, as_json=args.json) else 0
    findings = [*_check_machine(selected, args.image), *findings]
    return CtrainError.exit_code if report(findings, as_json=args.json) else 0


def _check_machine(selected: SelectedSite, image: str) -> Iterator[Finding]:
    yield check_selection(selected)
    yield from check_engine(selected.site)
    cluster, findings = check_cluster(selected.site)
    yield from findings
    if image:
        yield from check_image(image, selected, cluster or Cluster())
    yield from check_fabric()
    yield from check_directories(selected)


def _check_stores(selected: SelectedSite) -> Iterator[Finding]:
    roots = selected.store_dirs()
    for root in roots:
        yield from stores.check_store(Path(root))
    if not roots:
        name = selected.site.name
        named = next((layer.file for layer in selected.layers if layer.level == Level.FILE), "")
        file = named or site_dirs()[Level.USER] / f"{name}.yaml"
        hint = f"Make one: ctrain store init DIR, and add `stores: [DIR]` to {file}; without one: --image FILE.sif"
        yield Finding("stores", "warn", f"site {name} has no store configured", hint)


def report(findings: Sequence[Finding], *, as_json: bool) -> bool:
    """Print at least one finding; returns whether a check failed."""
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        first, *others = [(finding.subject, finding.level, finding.text, finding.hint) for finding in findings]
        print(table(first, others, widest=WIDEST))
    return any(finding.level == "fail" for finding in findings)

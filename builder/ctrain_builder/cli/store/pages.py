"""`ctrain store modules` and `catalogue`: files for users that are made from a store's contents."""

from __future__ import annotations

import argparse
from pathlib import Path

from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.store.common import AddAction, show
from ctrain_builder.store.views import catalogue_page, modules
from ctrain_runtime.base.text import format_size, pluralize, table
from ctrain_runtime.errors import StoreError
from ctrain_runtime.store.store import Store


def add_actions(add: AddAction) -> None:
    module_files = add("modules", "write module files for environment-modules and Lmod", _modules)
    module_files.add_argument("--output", type=Path, required=True, metavar="DIR", help="directory for `module use`")
    page = add("catalogue", "write a web page of the store: one file, which needs no network", _catalogue)
    page.add_argument(
        "--output", type=Path, metavar="FILE", help=f"where (default: {catalogue_page.FILE} in the store)"
    )


def _modules(args: argparse.Namespace, store: Store) -> int:
    output = args.output.absolute()
    offered, done = modules.update(store, output, print_note)
    rows = [(module.name, ", ".join(module.symbols)) for module in offered]
    did = f"{pluralize(len(done.written), 'file')} written, {len(done.removed)} removed; for users: module use {output}"
    data = {
        "modules": {module.name: module.symbols for module in offered},
        "written": list(map(str, done.written)),
        "removed": list(map(str, done.removed)),
    }
    show(args, data, "\n".join([*([table(("module", "also called"), rows)] if rows else []), did]))
    return StoreError.exit_code if store.scan().dangling else 0


def _catalogue(args: argparse.Namespace, store: Store) -> int:
    catalogue = catalogue_page.load_entries(store)
    for problem in (*catalogue.damaged, *(one.problem for one in catalogue.versions if one.problem)):
        print_note(f"ctrain: {problem}")
    path = catalogue_page.write(catalogue, args.output, print_note)
    versions, total = len(catalogue.versions), path.stat().st_size
    data = {"file": str(path), "versions": versions, "size": total}
    return show(args, data, f"{path} has {pluralize(versions, 'version')} ({format_size(total)})")

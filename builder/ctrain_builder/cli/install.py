"""Install ctrain for all users: versions beside each other below one directory, one of them the current one.

  ctrain install --prefix /apps/ctrain                   # install the version that is running
  ctrain install --prefix /apps/ctrain --wheel ctrain-0.2.0-py3-none-any.whl    # install another one beside it
  ctrain install --prefix /apps/ctrain --switch 0.2.0    # give users this version; or go back to an older one
  ctrain install --prefix /apps/ctrain --list            # list the versions

The first version is the current one at once. Users run: module use /apps/ctrain/modulefiles; module load ctrain
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ctrain_builder.install import versions
from ctrain_builder.install.prefix import Prefix, open_prefix
from ctrain_builder.install.source import from_running, from_wheel
from ctrain_runtime.base.text import table
from ctrain_runtime.cli.output import print_line
from ctrain_runtime.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prefix", required=True, metavar="DIR", help="directory of all versions; created if missing")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--wheel", metavar="FILE", help="wheel to install (default: that of this ctrain)")
    action.add_argument("--switch", default="", metavar="VERSION", help="make an installed version the current one")
    action.add_argument("--list", action="store_true", help="list the installed versions")
    parser.add_argument("--extras", default="", metavar="NAMES", help="optional packages, as in build (default: none)")
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PROGRAM",
        help="Python for the version (default: that of this ctrain)",
    )


def execute(args: argparse.Namespace) -> int:
    prefix = open_prefix(Path(args.prefix))
    if args.list:
        print(_list(prefix))
    elif args.switch:
        versions.switch(prefix, args.switch, _say)
        print(f"current is now {args.switch}; programs that are running keep their version")
    else:
        _install(prefix, args)
    return 0


def _install(prefix: Prefix, args: argparse.Namespace) -> None:
    source = from_wheel(Path(args.wheel)) if args.wheel else from_running()
    is_new = versions.install(prefix, source, args.extras, args.python, _say)
    current = prefix.current_version()
    print(f"{'installed' if is_new else 'unchanged'}  {prefix.version(source.version)}")
    print(f"current    {current}")
    if current != source.version:
        print(f"switch     ctrain install --prefix {prefix.root} --switch {source.version}")
    print(f"users      module use {prefix.modulefiles} && module load ctrain; or {prefix.current}/bin on PATH")
    print(f"sites      {prefix.sites}")
    print(f"store      {prefix.store}")
    print(f"next       {prefix.current}/bin/ctrain doctor")


def _list(prefix: Prefix) -> str:
    installations = prefix.installations()
    if not installations:
        raise UsageError(f"no ctrain is installed in {prefix.root}", f"Run: ctrain install --prefix {prefix.root}")
    current = prefix.current_version()
    rows = [
        (one.version, "current" if one.version == current else "", one.installed, one.source) for one in installations
    ]
    return table(("version", "", "installed", "from"), rows)


def _say(what: str) -> None:
    print_line(f"ctrain: {what}", sys.stderr)

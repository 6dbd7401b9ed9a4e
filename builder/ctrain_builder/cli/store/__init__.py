"""Manage a store: channels, retirement, garbage collection, integrity.

  ctrain store init /apps/ctrain                   # make a missing or empty directory a store
  ctrain store adopt /apps/images/*.sif            # bring image files that ctrain did not build into the store
  ctrain store list                                # list versions; --retired, --quarantined, --all: others
  ctrain store show pytorch:prod                   # one version, and which jobs use it; see also: diff OLD NEW
  ctrain store promote pytorch 24.12-hd-r4 prod    # point channel prod of pytorch to this version
  ctrain store rollback pytorch prod               # point it to the previous version
  ctrain store channel rm pytorch beta --yes       # remove a channel
  ctrain store retire pytorch:24.12-hd-r3          # offer a version no longer; its file is kept for a while
  ctrain store retire --keep 5 pytorch             # all but the newest five of each tag, and those in use
  ctrain store deprecate pytorch:24.12-hd-r3 --until 2027-03-31 --use pytorch:prod --reason 'has old NCCL'
  ctrain store retain                              # retire by the rules of policy.yaml, and what was deprecated
  ctrain store withdraw pytorch:24.12-hd-r3 --why 'has a token'   # take it out of use and channels; users see why
  ctrain store restore pytorch:24.12-hd-r3         # offer a retired, withdrawn or quarantined version again
  ctrain store remove pytorch:24.12-hd-r3          # remove one version's file at once: it says first who needs it
  ctrain store gc                                  # list removable files; --quarantine: also damaged images
  ctrain store verify                              # re-read all files; --quarantine moves damaged ones aside
  ctrain store sign pytorch:24.12-hd-r3 --key key.pem    # add a signature; --all-signed-by OLD rotates keys
  ctrain store scan                                # have the scanner of policy.yaml examine published versions
  ctrain store du                                  # show sizes and shared data
  ctrain store log                                 # list all changes
  ctrain store modules --output /apps/modules      # write module files: module load ctrain-pytorch/24.12-hd-r3
  ctrain store sync /apps/ctrain /mnt/disk         # copy versions to another store, also through a registry
  ctrain store mirror                              # follow the store that policy.yaml declares to be its source
  ctrain store catalogue                           # write a web page into the store: search, compare, copy commands

What removes or moves something lists it first, and does it with --yes; what acts at once has --dry-run.
The store is --store DIR or $CTRAIN_STORE. See: ctrain help store
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ctrain_builder.cli.options import add_dry_run, add_yes
from ctrain_builder.cli.store import adopt, channels, checks, pages, rules, signatures, versions
from ctrain_builder.cli.store.common import Run, show, store_root
from ctrain_builder.store.init import init_store
from ctrain_builder.store.inventory import PUBLISHED, REMOVED, stored_versions
from ctrain_runtime.base.paths import store_path
from ctrain_runtime.cli import images
from ctrain_runtime.images.image import Image
from ctrain_runtime.store.manifest import read_manifest
from ctrain_runtime.store.references import join
from ctrain_runtime.store.store import Store, open_store

_SYNC = """\
Copy versions from one store to another, with their names and numbers.

  ctrain store sync ./store oras://registry.example.com/images        # all versions to a registry
  ctrain store sync oras://registry.example.com/images /apps/ctrain   # and from there to another store
  ctrain store sync /apps/ctrain /mnt/disk pytorch:prod --channels    # the version in prod, with the channel
  ctrain store sync /apps/ctrain /media/images.tar pytorch:prod       # into one file, to be carried somewhere
  ctrain store sync /media/images.tar /apps/ctrain                    # and out of it

SRC and DST are directories; archives, FILE.tar, for sites without a network; or places in a registry, where each image
is a repository, and versions and channels are
its tags: `apptainer pull oras://registry.example.com/images/pytorch:prod` works too. What DST has already is not copied
again. If interrupted, it resumes. A registry asks for the login that `apptainer registry login` has left; images that
may not be passed on (ctrain help licences) go to none, unless --redistribute tells why they may.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(name: str, text: str, run: Run) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, allow_abbrev=False)
        action.add_argument("--store", metavar="DIR", help="the store's directory (default: $CTRAIN_STORE)")
        action.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        action.set_defaults(execute=lambda args: run(args, open_store(store_root(args.store))))
        return action

    init = actions.add_parser("init", help="make a missing or empty directory a store", allow_abbrev=False)
    init.add_argument("root", metavar="DIR")
    init.add_argument("--repair", action="store_true", help="write a lost or damaged marker file again")
    init.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    init.set_defaults(execute=_init)

    images.add_show_arguments(add("show", "one version, and which jobs use it: as `ctrain images show`", _show))
    images.add_diff_arguments(add("diff", "what changed between two versions: as `ctrain images diff`", _diff))
    for family in (adopt, versions, channels, rules, signatures, checks, pages):
        family.add_actions(add)
    shown = argparse.RawDescriptionHelpFormatter
    text = "copy versions to another store, or to and from a registry"
    sync = actions.add_parser("sync", help=text, description=_SYNC, formatter_class=shown, allow_abbrev=False)
    sync.add_argument("source", metavar="SRC", help="a store's directory, or oras://HOST[:PORT]/PATH")
    sync.add_argument("target", metavar="DST", help="the same; `ctrain store init` creates a store")
    sync.add_argument("images", nargs="*", default=[], metavar="NAME[:VERSION|:CHANNEL]", help="default: all")
    sync.add_argument("--channels", action="store_true", help="also make DST's channels point to what SRC's do")
    text = "also pass on to a registry what licences or images.yaml forbid; REASON goes to the log of SRC"
    sync.add_argument("--redistribute", metavar="REASON", help=text)
    add_dry_run(sync)
    sync.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    sync.add_argument("--cache", type=Path, metavar="DIR", help="where uploads are recorded ($CTRAIN_CACHE)")
    sync.set_defaults(execute=_sync)
    add_yes(
        add("mirror", "follow the store that policy.yaml declares: copies, channels, retirements, withdrawals", _mirror)
    )


def execute(args: argparse.Namespace) -> int:
    return int(args.execute(args))


def _init(args: argparse.Namespace) -> int:
    created = init_store(store_path(args.root), args.repair)
    text = f"{args.root} is a store now" if created else f"{args.root} is already a store"
    return show(args, {"store": args.root, "created": created}, text)


def _sync(args: argparse.Namespace) -> int:
    from ctrain_builder.cli import sync  # only now: all other actions do without a client of registries

    return sync.execute(args)


def _mirror(args: argparse.Namespace, store: Store) -> int:
    from ctrain_builder.cli import sync  # as above

    return sync.follow(args, store)


def _show(args: argparse.Namespace, store: Store) -> int:
    reference = join(args.image, args.version)
    unpublished = {one.reference: one for one in stored_versions(store) if one.state not in (PUBLISHED, REMOVED)}
    if reference not in unpublished or any(one.manifest.reference == reference for one in store.images()):
        return images.execute(args)
    version = unpublished[reference]
    if not args.json:
        print(f"{reference} {store.absence(version.image.stem)}")
    print(images.show(Image(version.image, read_manifest(version.manifest)), args.json))
    return 0


def _diff(args: argparse.Namespace, _: Store) -> int:
    return images.execute(args)

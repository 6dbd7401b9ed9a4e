"""Build, show or sign a user layer on top of a published image. See: ctrain help user-layers

  ctrain layer build requirements.txt --on pytorch:prod -o my.sqsh     # add packages with pip
  ctrain layer build script.sh --on pytorch:prod -o my.sqsh            # run a script as the container's root
  ctrain layer build script.sh --with src --on pytorch:prod -o my.sqsh    # that uses the directory src beside it
  ctrain layer show my.sqsh                                            # show its image and its packages
  ctrain run resnet50 --layer my.sqsh                                  # use it in a run
  ctrain layer sign my.sqsh --key admin.pem                            # for sites that require signatures

Packages of the image are not changed: a layer that needs another torch, NCCL, MPI or CUDA is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import pwd
import sys
from pathlib import Path

from ctrain_builder.build_host import settings
from ctrain_builder.cache.cache_root import open_cache
from ctrain_builder.cli.options import cache_directory
from ctrain_builder.cli.progress import ProgressLines
from ctrain_builder.cli.signer import make_signer
from ctrain_builder.files import atomic
from ctrain_builder.layers import host_tools, user_source, workspace
from ctrain_builder.layers import user_layer as maker
from ctrain_builder.layers.container import Container
from ctrain_builder.store import signatures as store_signatures
from ctrain_runtime.base.digest import short
from ctrain_runtime.base.text import format_size, table
from ctrain_runtime.engines.apptainer import find_building_engine
from ctrain_runtime.errors import BuildError, UsageError
from ctrain_runtime.images import image, user_layer
from ctrain_runtime.images.trust import require_trusted
from ctrain_runtime.images.user_layer import UserLayer
from ctrain_runtime.site.select import select_site
from ctrain_runtime.store import signatures
from ctrain_runtime.store.store import open_stores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="build|show|sign")
    build = actions.add_parser("build", help="build a layer", allow_abbrev=False)
    build.add_argument("source", type=Path, metavar="FILE", help="a requirements file for pip, or a script (NAME.sh)")
    build.add_argument(
        "--with",
        dest="named",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="file or directory that FILE uses: the build sees it beside FILE, and nothing else of yours (repeatable)",
    )
    build.add_argument("--on", required=True, metavar="IMAGE", help="NAME[:CHANNEL|:VERSION], NAME@DIGEST or a .sif")
    build.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="file to create, e.g. my.sqsh")
    build.add_argument("--store", metavar="DIR", help="store to look in (default: CTRAIN_STORE, then the site's)")
    build.add_argument(
        "--cache",
        type=cache_directory,
        metavar="DIR",
        help="for the log and temporary files ($CTRAIN_CACHE, /var/tmp/ctrain-UID)",
    )
    show = actions.add_parser("show", help="show what a layer is built on and what it adds", allow_abbrev=False)
    show.add_argument("layer", type=Path, metavar="LAYER")
    sign = actions.add_parser("sign", help="sign a layer, in a file LAYER.sig beside it", allow_abbrev=False)
    sign.add_argument("layer", type=Path, metavar="LAYER")
    text = "the key that signs: a PEM file, pgp:N of the engine's key ring, or gpg:KEY of gpg's agent"
    sign.add_argument("--key", required=True, metavar="KEY", help=text)
    for action in (build, show, sign):
        action.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def execute(args: argparse.Namespace) -> int:
    if args.action == "show":
        layer = user_layer.read(args.layer)
        print(_as_json(layer) if args.json else _describe(layer))
        return 0
    if args.action == "sign":
        layer, key = _sign(args)
        print(_as_json(layer) if args.json else f"{layer.path} ({short(layer.digest)}) signed with {key}")
        return 0
    layer = _build(args)
    print(_as_json(layer) if args.json else f"run with it: ctrain run --image {args.on} --layer {args.output} ...")
    return 0


def _build(args: argparse.Namespace) -> UserLayer:
    source, output = args.source.resolve(), args.output.absolute()
    if image.is_pulled(args.on):
        problem = f"--on {args.on}: user layers are built on images that ctrain built, not on references"
        hint = "Build an image whose definition has `Bootstrap: docker` and this `From:`; see: ctrain help images"
        raise UsageError(problem, hint)
    _check(source, output)
    sources = user_source.collect(source, args.named, _homes())
    selected = select_site("", {"store": args.store})
    stores = [] if image.is_path(args.on) else open_stores(selected.store_dirs())
    on = image.find((args.on,), stores, platform.machine())
    require_trusted(on, selected.site)  # its programs run here
    cache = open_cache(args.cache)
    cache.work.sweep()
    log = cache.files.new_log(f"layer-{output.stem}")
    progress = ProgressLines(sys.stderr if args.json else sys.stdout)
    step = progress.begin("layer", output.name, log)
    try:
        with cache.work.create() as work:
            host = settings.detect(os.environ)
            container = Container(find_building_engine(), work, progress.tick, secrets=host.secrets)
            space = workspace.prepare(work, host)
            layer = maker.make(container, on, sources, space, log, output)
        step.end("built", output.stat().st_size)
    finally:
        progress.close()
    return layer


def _sign(args: argparse.Namespace) -> tuple[UserLayer, str]:
    """Sign a layer whose bytes were read; the layer, and the key."""
    layer, signer = user_layer.read(args.layer), make_signer(args.key)
    signer.check()
    signature = store_signatures.sign_statement(signatures.layer_statement(layer.digest), signer)
    path = signatures.path_for_layer(layer.path)
    try:
        atomic.write_bytes(path, signature.content)
    except OSError as error:
        raise BuildError(f"cannot write {path}: {error.strerror}", "Sign a copy of the layer") from error
    return layer, signature.key


def _check(source: Path, output: Path) -> None:
    """What would otherwise fail after the work."""
    if not source.is_file():
        raise UsageError(f"file {source} not found", "Name a requirements file or a script")
    if not output.parent.is_dir() or output.is_dir():
        raise UsageError(f"-o {output} must be a file in an existing directory", "For example: -o my.sqsh")
    for tool in ("mksquashfs", "unsquashfs"):
        host_tools.require_tool(tool, "squashfs-tools")


def _homes() -> list[Path]:
    """The user's home directories: the account's, and what HOME says."""
    names = [os.environ.get("HOME", "")]
    with contextlib.suppress(KeyError):  # a user ID without an account
        names.append(pwd.getpwuid(os.geteuid()).pw_dir)
    return [Path(name).resolve() for name in names if name]


def _as_json(layer: UserLayer) -> str:
    facts = {"path": str(layer.path), "digest": layer.digest, "size": layer.path.stat().st_size}
    return json.dumps({**facts, **dataclasses.asdict(layer.description)}, indent=2)


def _describe(layer: UserLayer) -> str:
    about = layer.description
    rows = [
        ("layer", f"{layer.path} ({format_size(layer.path.stat().st_size)})  {short(layer.digest)}"),
        ("on", f"{about.parent.name} {about.parent.version}  {short(about.parent.digest)}"),
        ("from", f"{about.source}, {about.built}"),
    ]
    signature = signatures.path_for_layer(layer.path)
    if signatures.holds(signature, signatures.layer_statement(layer.digest)):
        rows.append(("signed", f"by {', '.join(signatures.keys(signature))} (not verified)"))
    lines = [f"{key:<8}{value}" for key, value in rows]
    packages = sorted(about.packages.items())
    return "\n".join([*lines, table(("package", "version"), packages) if packages else "no Python packages"])

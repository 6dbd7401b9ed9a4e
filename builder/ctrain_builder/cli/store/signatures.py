"""`ctrain store sign`, and `verify --signatures`: who vouches for published versions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ctrain_builder.cli.bar import print_note
from ctrain_builder.cli.options import add_dry_run
from ctrain_builder.cli.signer import make_signer
from ctrain_builder.cli.store.common import AddAction, show
from ctrain_builder.store import signatures
from ctrain_runtime.base.digest import file_digest, short
from ctrain_runtime.base.text import table
from ctrain_runtime.engines.apptainer import Engine, find_engine
from ctrain_runtime.errors import ImageUnusable, UsageError
from ctrain_runtime.images import trust
from ctrain_runtime.images.image import Image
from ctrain_runtime.site.select import select_site
from ctrain_runtime.store.references import join_all, resolve
from ctrain_runtime.store.signatures import added, covers
from ctrain_runtime.store.store import PublishedImage, Store


def add_actions(add: AddAction) -> None:
    sign = add("sign", "add a signature to published versions", _sign)
    sign.add_argument("images", nargs="*", metavar="IMAGE", help="NAME:VERSION, NAME VERSION or NAME@sha256:DIGEST")
    text = "all versions that this older key has signed: a public key or certificate in PEM, or a PGP fingerprint"
    sign.add_argument("--all-signed-by", metavar="OLD", help=text)
    text = "the key that signs: a PEM file, pgp:N of the engine's key ring, or gpg:KEY of gpg's agent"
    sign.add_argument("--key", required=True, metavar="KEY", help=text)
    add_dry_run(sign)


def _sign(args: argparse.Namespace, store: Store) -> int:
    if bool(args.images) == bool(args.all_signed_by):
        hint = "As in: ctrain store sign pytorch:24.12-hd-r3 --key admin.pem"
        raise UsageError("specify images, or --all-signed-by", hint)
    signer = make_signer(args.key)
    signer.check()
    images, others = [resolve([store], reference) for reference in join_all(args.images)], list[PublishedImage]()
    if args.all_signed_by:
        images, others = _split(store.images(), trust.check_key(args.all_signed_by), signer.engine)
    for image in others:
        problem = "has not signed it as it is now"
        if trust.verifies(signer.engine, image.path, args.all_signed_by):
            problem = f"has signed its file, not its name and version; {_sign_by_name(image)}"
        print_note(f"{image.manifest.reference} is left out: {args.all_signed_by} {problem}")
    data, lines = [], []
    for image in images:
        name, key = image.manifest.reference, ""
        did = f"would be signed with {args.key}"
        if not args.dry_run:
            has_read = image.manifest.digest if args.all_signed_by else ""  # by _split
            key = signatures.sign(store.root, image, signer, print_note, has_read)
            did = f"signed with {key}" if key else "has a signature by this key already"
        data.append({"image": name, "digest": image.manifest.digest, "key": key or None})
        lines.append(f"{name} ({short(image.manifest.digest)}) {did}")
    return show(args, {"images": data, "done": not args.dry_run}, "\n".join(lines) or "no versions")


def _split(
    images: Sequence[PublishedImage], key: str, engine: Engine
) -> tuple[list[PublishedImage], list[PublishedImage]]:
    """The versions that a key vouches for, byte for byte, and the others. A new key must not vouch for more: whoever
    can write to the store could have put it there."""
    vouched: list[PublishedImage] = []
    others: list[PublishedImage] = []
    for image in images:
        manifest = image.manifest
        valid = trust.is_signed_by(Image(image.path, manifest), key, engine)
        (vouched if valid and file_digest(image.path) == manifest.digest else others).append(image)
    return vouched, others


def _sign_by_name(image: PublishedImage) -> str:
    return f"if it is the version that it is offered as: ctrain store sign {image.manifest.reference} --key KEY"


def verify(args: argparse.Namespace, store: Store, names: Sequence[str]) -> int:
    """Check the signatures of these versions, of all versions of these images, or of all.

    The exit code is that of ImageUnusable if a version has none by one of the keys, or one of another version.
    """
    keys = args.key or list(select_site().site.trusted_keys)
    if not keys:
        raise UsageError(
            "no keys to check signatures with", "Pass --key FILE|FINGERPRINT, or set trusted_keys of a site"
        )
    engine = find_engine()
    keys = [trust.check_key(key) for key in keys]
    rows, problems, data = [], [], []
    for image in store.images():
        if names and not {image.manifest.name, image.manifest.reference} & {*names}:
            continue
        valid = [key for key in keys if trust.is_signed_by(Image(image.path, image.manifest), key, engine)]
        if not valid:
            in_file = any(trust.verifies(engine, image.path, key) for key in keys)
            problem = f"is signed in its file alone; {_sign_by_name(image)}" if in_file else ""
            problems.append(f"{image.manifest.reference} {problem or 'is not signed by any of these keys'}")
        foreign = [path for path in added(image.path) if not covers(path, image.manifest)]
        problems += [f"{path} is damaged, or a signature of another version or digest" for path in foreign]
        rows.append((image.manifest.reference, ", ".join(valid) or "-"))
        data.append({"image": image.manifest.reference, "signed_by": valid})
    text = "\n".join([table(("image", "signed by"), rows) if rows else "no versions", *problems])
    show(args, {"images": data, "problems": problems}, text)
    return ImageUnusable.exit_code if problems else 0

"""Signatures by the real engine: made when an image is published, asked for before it runs."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.files import manifest_writer
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import CopyObserver, publish
from ctrain_builder.store.sign import Signer, may_need_passphrase
from ctrain_runtime.base.user_cache import UserCache, file_conditions
from ctrain_runtime.cli.main import main
from ctrain_runtime.engines.apptainer import find_engine
from ctrain_runtime.errors import ImageUnusable, SiteError, UsageError
from ctrain_runtime.images import foreign, trust
from ctrain_runtime.images.image import Image, find_any_arch
from ctrain_runtime.site.model import Site
from ctrain_runtime.store import sif, signatures
from ctrain_runtime.store.manifest import Layer, read_manifest
from ctrain_runtime.store.store import open_store
from samples import gpg
from samples.sample_images import write_image

PASSPHRASE = "correct horse"
SILENT = CopyObserver(lambda _: None, lambda _: None)


def engine(*argv: str) -> str:
    return subprocess.run(["apptainer", *argv], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """admin.pem, admin.pub, admin.crt, and stranger.pem, stranger.pub"""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("admin", "stranger"):
        private = str(folder / f"{name}.pem")
        openssl("genpkey", "-algorithm", "ed25519", "-out", private)
        Path(private).chmod(0o600)
        openssl("pkey", "-in", private, "-pubout", "-out", str(folder / f"{name}.pub"))
    request = ["req", "-x509", "-key", str(folder / "admin.pem"), "-subj", "/CN=admin", "-days", "30"]
    openssl(*request, "-addext", "extendedKeyUsage=codeSigning", "-out", str(folder / "admin.crt"))
    return folder


def openssl(*argv: str) -> None:
    subprocess.run(["openssl", *argv], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what was verified, and for PGP keys."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("APPTAINER_KEYSDIR", str(tmp_path / "keyring"))


def published(folder: Path, key: str = "", content: bytes = b"", passphrase: str = "", digest: str = "") -> Image:
    """A small image in a store, signed with `key`; with a `digest`, of a layer that has it."""
    source = folder / "source.sif"
    source.unlink(missing_ok=True)
    part = folder / "part"
    part.write_bytes(content or os.urandom(20_000))
    engine("sif", "new", str(source))
    options = ("--datatype", "4", "--partfs", "1", "--partarch", "2", "--groupid", "1", "--parttype", "2")
    engine("sif", "add", *options, str(source), str(part))
    layers = (Layer("base", "k0", part.stat().st_size, digest),) if digest else ()
    beside = write_image(folder, content=source.read_bytes(), digest=trust._digest(source), release=0, layers=layers)
    signer = Signer(find_engine(), key, passphrase) if key else None
    init_store(folder / "store")
    outcome = publish(source, read_manifest(beside.with_suffix(".json")), folder / "store", "prod", SILENT, signer)
    return find_any_arch(("pytorch:prod",), [open_store(outcome.image.path.parent)])


def strict(*keys: object) -> Site:
    return Site("strict", "local", require_signature=True, trusted_keys=tuple(map(str, keys)))


@pytest.mark.parametrize("public", ["admin.pub", "admin.crt"])
def test_what_a_trusted_key_has_signed_may_run(tmp_path: Path, keys: Path, public: str) -> None:
    image = published(tmp_path, str(keys / "admin.pem"))
    assert image.manifest.signed
    assert image.manifest.digest == trust._digest(image.path)
    assert image.path.stat().st_mode & 0o777 == 0o444
    assert [entry.kind for entry in sif.read(image.path).entries] == [sif.PARTITION, sif.SIGNATURE]
    trust.require_trusted(image, strict(keys / "stranger.pub", keys / public))


def test_what_no_trusted_key_has_signed_may_not(tmp_path: Path, keys: Path) -> None:
    unsigned, signed = published(tmp_path), published(tmp_path, str(keys / "admin.pem"))
    assert (unsigned.manifest.signed, unsigned.manifest.release, signed.manifest.release) == (False, 1, 2)
    nobodys = "cannot be verified: PGP key 0{40}, which site strict trusts, is in no key ring"
    not_so = r"is not signed by a key that site strict trusts\. Ask its"
    cases = (
        (unsigned, keys / "admin.pub", not_so),
        (signed, keys / "stranger.pub", not_so),
        (signed, "0" * 40, nobodys),
    )
    for image, key, complaint in cases:
        with pytest.raises(ImageUnusable, match=complaint):
            trust.require_trusted(image, strict(key))
        trust.require_trusted(image, replace(strict(key), require_signature=False))


@pytest.mark.parametrize("passphrase", ["", PASSPHRASE])
def test_pgp(tmp_path: Path, passphrase: str) -> None:
    options = ("--name", "Admin", "--email", "admin@example.org", "--password", passphrase, "--push=false")
    engine("key", "newpair", *options, "--bit-length", "2048")
    fingerprint = re.search(r"[0-9A-F]{40}", engine("key", "list", "--secret"))
    assert fingerprint
    image = published(tmp_path, "pgp:0", passphrase=passphrase)
    trust.require_trusted(image, strict(fingerprint[0].lower()))
    with pytest.raises(ImageUnusable, match="is in no key ring"):
        trust.require_trusted(image, strict("A" * 40))


def test_a_key_of_gpgs_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gpg.admin(monkeypatch, tmp_path) as fingerprint:
        image = published(tmp_path, "gpg:admin@example.org")
        for key in ("gpg:nobody@example.org", "gpg:"):
            with pytest.raises(UsageError, match="see: gpg"):
                published(tmp_path, key)
    trust.require_trusted(image, strict(fingerprint))
    assert [entry.kind for entry in sif.read(image.path).entries] == [sif.PARTITION, sif.SIGNATURE]
    with pytest.raises(ImageUnusable, match="is in no key ring"):
        trust.require_trusted(image, strict("A" * 40))
    spoilt = image.path.read_bytes()
    image.path.chmod(0o644)
    image.path.write_bytes(spoilt[:40000] + bytes([spoilt[40000] ^ 1]) + spoilt[40001:])
    with pytest.raises(ImageUnusable, match="digest mismatch"):
        trust.require_trusted(image, strict(fingerprint))


def test_any_flipped_byte_is_found_before_a_run(tmp_path: Path, keys: Path) -> None:
    """Also one between the objects, which no signature covers."""
    image, site = published(tmp_path, str(keys / "admin.pem")), strict(keys / "admin.pub")
    good = image.path.read_bytes()
    chance = random.Random(20261121)
    image.path.chmod(0o644)
    for place in (*range(0, 128, 9), *chance.sample(range(len(good)), 40)):
        image.path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(ImageUnusable):
            trust.require_trusted(image, site)
    image.path.write_bytes(good)
    trust.require_trusted(image, site)


def test_an_object_that_was_added_later_is_found(tmp_path: Path, keys: Path) -> None:
    image = published(tmp_path, str(keys / "admin.pem"))
    image.path.chmod(0o644)
    (tmp_path / "evil").write_bytes(os.urandom(5000))
    options = ("--datatype", "4", "--partfs", "1", "--partarch", "2", "--parttype", "4", "--groupid", "1")
    engine("sif", "add", *options, str(image.path), str(tmp_path / "evil"))
    forged = replace(image, manifest=replace(image.manifest, digest=trust._digest(image.path)))
    with pytest.raises(ImageUnusable, match="has signatures, but of another digest, name or version"):
        trust.require_trusted(forged, strict(keys / "admin.pub"))


_FILE_SYSTEM = ("--datatype", "4", "--partfs", "1", "--partarch", "2", "--parttype", "2")


@pytest.fixture(scope="module")
def key_ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key ring with the keys of an admin and of somebody else, numbers 0 and 1."""
    ring = tmp_path_factory.mktemp("ring")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("APPTAINER_KEYSDIR", str(ring))
        for name in ("Admin", "Stranger"):
            options = ("--name", name, "--email", f"{name}@example.org", "--password", "", "--push=false")
            options += ("--bit-length", "2048")
            engine("key", "newpair", *options)
    return ring


def with_a_signed_object(folder: Path, how: str) -> Path:
    """A file system of somebody else, with a small object that the admin has signed."""
    path = folder / f"{how}.sif"
    (folder / "part").write_bytes(os.urandom(20_000))
    (folder / "small").write_text("{}")
    engine("sif", "new", str(path))
    engine("sif", "add", *_FILE_SYSTEM, "--groupid", "0" if how == "no group" else "1", str(path), str(folder / "part"))
    engine("sif", "add", "--datatype", "7", "--groupid", "2", str(path), str(folder / "small"))
    if how == "another group":
        engine("sign", "--group-id", "1", "--keyidx", "1", str(path))
    engine("sign", "--group-id", "2", "--keyidx", "0", str(path))
    return path


@pytest.mark.parametrize("how", ["another group", "no group", "unsigned group"])
def test_a_signature_on_a_part_is_none_on_the_file_system(
    tmp_path: Path, how: str, key_ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines verify each group by whatever key has signed it."""
    monkeypatch.setenv("APPTAINER_KEYSDIR", str(key_ring))
    admin, _ = re.findall(r"[0-9A-F]{40}", engine("key", "list", "--secret"))
    path = with_a_signed_object(tmp_path, how)
    image = Image(path, replace(foreign.locate(path, lambda *_: None).manifest, digest=trust._digest(path)))
    with pytest.raises(ImageUnusable, match=r"trusts: its signatures are not of all its objects\. Ask"):
        trust.require_trusted(image, strict(admin))
    assert signatures.keys(path) == []
    engine("sign", "--keyidx", "0", str(published(tmp_path).path.rename(path)))
    image = Image(path, replace(image.manifest, digest=trust._digest(path)))
    trust.require_trusted(image, strict(admin))


def test_no_setting_of_the_engine_takes_the_place_of_the_key(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apptainer prefers the certificate that this variable names to the key on the command line."""
    image = published(tmp_path, str(keys / "admin.pem"))
    for name in ("CERTIFICATE", "ROOTS"):
        monkeypatch.setenv(f"APPTAINER_VERIFY_{name}", str(keys / "admin.crt"))
    with pytest.raises(ImageUnusable, match="is not signed by a key that site strict trusts"):
        trust.require_trusted(image, strict(keys / "stranger.pub"))


def test_an_old_version_is_not_taken_for_a_new_one(tmp_path: Path, keys: Path) -> None:
    """By somebody who can write to the store, but has no key: all of its bytes were signed once."""
    old, new = published(tmp_path, str(keys / "admin.pem")), published(tmp_path, str(keys / "admin.pem"))
    site = strict(keys / "admin.pub")
    for image in (old, new):
        trust.require_trusted(image, site)
    manifest = replace(new.manifest, digest=old.manifest.digest, size=old.manifest.size)
    old.path.replace(new.path)
    manifest_writer.write(new.path.with_suffix(".json"), manifest)
    (image,) = [one for one in open_store(tmp_path / "store").images() if one.path == new.path]
    complaint = r"has signatures, but of another digest, name or version\. .* report it to the store's owner"
    with pytest.raises(ImageUnusable, match=complaint):
        trust.require_trusted(Image(image.path, image.manifest), site)


def test_a_version_that_an_earlier_ctrain_has_signed_asks_for_its_name(tmp_path: Path, keys: Path) -> None:
    """It signed the file alone. What it had verified does not count any more."""
    image, site = published(tmp_path, str(keys / "admin.pem")), strict(keys / "admin.pub")
    (added,) = signatures.added(image.path)
    added.unlink()
    earlier = [*file_conditions(image.path), hashlib.sha256((keys / "admin.pub").read_bytes()).hexdigest()]
    UserCache(trust.CACHE).put(str(image.path), earlier, True)
    with pytest.raises(ImageUnusable, match="none on its name and version"):
        trust.require_trusted(image, site)
    root, sign = str(tmp_path / "store"), ["--key", str(keys / "admin.pem")]
    assert main(BUILD_VERBS, ["store", "sign", image.manifest.reference, *sign, "--store", root]) == 0
    trust.require_trusted(image, site)


def test_publishing_with_another_key_promotes_no_version_that_it_has_not_signed(tmp_path: Path, keys: Path) -> None:
    """The same image is there, signed by another key, or by none: it gets another number, and that a signature."""
    content, digest = os.urandom(20_000), f"sha256:{'0' * 64}"
    releases = []
    for key in ("", "stranger", "admin", "admin", "stranger"):
        image = published(tmp_path, str(keys / f"{key}.pem") if key else "", content, digest=digest)
        releases.append(image.manifest.release)
        if key:
            trust.require_trusted(image, strict(keys / f"{key}.pub"))
    assert releases == [1, 2, 3, 3, 2]


def test_what_was_verified_is_not_read_again_until_it_changes(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, site = published(tmp_path, str(keys / "admin.pem")), strict(keys / "admin.pub")
    trust.require_trusted(image, site)
    monkeypatch.setattr(trust, "verifies", lambda *_: False)
    trust.require_trusted(image, site)
    with pytest.raises(ImageUnusable):
        trust.require_trusted(image, strict(keys / "stranger.pub"))
    shutil.copy(image.path, tmp_path / "copy")
    (tmp_path / "copy").replace(image.path)
    with pytest.raises(ImageUnusable):
        trust.require_trusted(image, site)


def test_a_pem_key_with_a_passphrase(tmp_path: Path, keys: Path) -> None:
    locked = str(tmp_path / "locked.pem")
    openssl("pkey", "-in", str(keys / "admin.pem"), "-aes256", "-passout", f"pass:{PASSPHRASE}", "-out", locked)
    Path(locked).chmod(0o600)
    assert may_need_passphrase(locked) and not may_need_passphrase(str(keys / "admin.pem"))
    with pytest.raises(UsageError, match=r"^passphrase of key .* is wrong"):
        published(tmp_path, locked, passphrase=PASSPHRASE.upper())
    trust.require_trusted(published(tmp_path, locked, passphrase=PASSPHRASE), strict(keys / "admin.pub"))


@pytest.mark.parametrize(
    ("key", "kind", "complaint"),
    [
        ("nowhere.pem", UsageError, "key nowhere.pem not found"),
        ("pgp:first", UsageError, "'pgp:first' names no key"),
        ("admin.pub", UsageError, "admin.pub is a public key or certificate"),
        ("open.pem", UsageError, "can be read by others. chmod 600"),
    ],
)
def test_keys_that_can_not_sign(tmp_path: Path, keys: Path, key: str, kind: type[Exception], complaint: str) -> None:
    shutil.copy(keys / "admin.pem", tmp_path / "open.pem")
    (tmp_path / "open.pem").chmod(0o644)
    shutil.copy(keys / "admin.pub", tmp_path)
    (tmp_path / "admin.pub").chmod(0o600)
    with pytest.raises(kind, match=complaint):
        published(tmp_path, str(tmp_path / key) if (tmp_path / key).exists() else key)
    if (tmp_path / "store").exists():
        assert open_store(tmp_path / "store").images() == ()
        assert not list((tmp_path / "store").glob(".*.part"))


def test_a_site_without_its_keys(tmp_path: Path) -> None:
    image = published(tmp_path)
    with pytest.raises(SiteError, match="requires signatures but has no trusted keys"):
        trust.require_trusted(image, strict())
    with pytest.raises(SiteError, match=r"trusted_keys: file /etc/nowhere\.pub not found"):
        trust.require_trusted(image, strict("/etc/nowhere.pub"))

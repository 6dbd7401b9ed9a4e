"""Whether an image may run, with a stand-in for `apptainer verify`; the real one: tests/integration/test_trust.py."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ctrain_runtime.errors import CtrainError, EngineError, ImageUnusable, SiteError
from ctrain_runtime.images import foreign, trust, user_layer
from ctrain_runtime.images.image import Image, find_any_arch
from ctrain_runtime.images.user_layer import UserLayer
from ctrain_runtime.site.model import Site
from ctrain_runtime.store import signatures
from ctrain_runtime.store.sif import SIGNATURE
from samples.layers import write_layer
from samples.plans import a_manifest
from samples.programs import answer
from samples.sample_images import sif, write_image, write_signature

ADMIN, STRANGER = "A" * 40, "B" * 40  # fingerprints
VERSION = "apptainer version 1.4.5\n"


def signed_by(*signers: str, intact: bool = True) -> str:
    """The output of `verify --json`."""
    entries = [{"Signer": {"Fingerprint": signer, "DataCheck": intact}} for signer in signers]
    return json.dumps({"SignerKeys": entries})


# Recorded: `singularity --quiet verify --all --local --json FILE` of SingularityCE 4.3.4; 4.5.1 has the same form
SINGULARITY_CE = """\
{
  "Signatures": 1,
  "SignerKeys": [
    {
      "Signer": {
        "Partition": "FS",
        "Name": "T (c) \\u003ct@example.org\\u003e",
        "Fingerprint": "7ee7e1a95397645e5c8eb6263def25e1fc734983",
        "KeyLocal": true,
        "KeyCheck": true,
        "DataCheck": true
      }
    }
  ]
}
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    content = sif()
    path = write_image(tmp_path, content=content, digest=f"sha256:{hashlib.sha256(content).hexdigest()}")
    found = find_any_arch((str(path),), [])
    write_signature(path, found.manifest)
    return found


def strict(*keys: str) -> Site:
    return Site(name="mine", scheduler="local", require_signature=True, trusted_keys=keys or (ADMIN,))


def engine(programs: Path, said: str = "", code: int = 0) -> Path:
    """An engine whose verification says this; the file of its calls."""
    return answer(programs, "apptainer", said, code=code, version=VERSION)


def added(image: Image) -> Path:
    (path,) = signatures.added(image.path)
    return path


def verifications(calls: Path) -> list[str]:
    return [line for line in calls.read_text().splitlines() if "verify" in line]


def test_a_site_without_the_demand_asks_nobody(image: Image, programs: Path) -> None:
    calls = engine(programs, code=1)
    trust.require_trusted(image, Site(name="mine", scheduler="local", trusted_keys=(ADMIN,)))
    assert not calls.exists()


@pytest.mark.parametrize("signers", [(ADMIN,), (STRANGER, ADMIN), (ADMIN.lower(),)])
def test_a_trusted_signature(image: Image, programs: Path, signers: tuple[str, ...]) -> None:
    calls = engine(programs, signed_by(*signers))
    trust.require_trusted(image, strict())
    assert verifications(calls) == [f"--quiet verify --all --local --json {added(image)}"]


def test_a_signature_that_singularity_verifies(image: Image, programs: Path) -> None:
    engine(programs, SINGULARITY_CE)
    trust.require_trusted(image, strict("7EE7E1A95397645E5C8EB6263DEF25E1FC734983"))


def test_an_old_singularity_does_not_verify_keys_in_pem(image: Image, programs: Path, tmp_path: Path) -> None:
    """Recorded with SingularityCE 3.9.7."""
    key = tmp_path / "admin.pub"
    key.write_text("-----BEGIN PUBLIC KEY-----")
    unknown = 'Error for command "verify": unknown flag: --key\n'
    answer(programs, "singularity", error=unknown, code=1, version="singularity-ce version 3.9.7\n")
    with pytest.raises(ImageUnusable, match=rf"singularity 3.9.7 knows PGP keys alone, not {key}. Ask the admin"):
        trust.require_trusted(image, strict(str(key)))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (signed_by(STRANGER), 0),
        ('{\n  "Signatures": 0,\n  "SignerKeys": null\n}\n', 255),  # SingularityCE 4.5.1, of an image without any
        (signed_by(ADMIN, intact=False), 0),
        (signed_by(ADMIN), 1),  # the engine's exit code counts: another object is not signed
        (signed_by(), 0),
        ("", 0),
        ("no JSON", 0),
        ("null", 0),
        ('{"SignerKeys": [{}]}', 0),
        ('{"SignerKeys": [{"Signer": {"Fingerprint": 7}}]}', 0),
        (ADMIN, 0),
    ],
)
def test_no_trusted_signature(image: Image, programs: Path, said: str, code: int) -> None:
    engine(programs, said, code)
    complaint = rf"^image {image.path} is not signed by a key that site mine trusts\. Ask its publisher to run: ctrain"
    with pytest.raises(ImageUnusable, match=complaint):
        trust.require_trusted(image, strict())


@pytest.mark.parametrize(("ring", "absent"), [(STRANGER, True), (ADMIN, False)])
def test_a_trusted_key_that_no_key_ring_has(image: Image, programs: Path, ring: str, absent: bool) -> None:
    """Nothing is known of the image then: to call it unsigned would send people to its publisher."""
    engine(programs, f"Public key listing (/home/me/.apptainer/keys/pgp-public):\n\n    Fingerprint:       {ring}\n")
    unverifiable = rf"^image {image.path} cannot be verified: PGP key {ADMIN}, which site mine trusts, is in no"
    unsigned = rf"^image {image.path} is not signed by a key that site mine trusts\."
    with pytest.raises(ImageUnusable, match=unverifiable if absent else unsigned):
        trust.require_trusted(image, strict())


@pytest.mark.parametrize(
    ("text", "kind"), [("-----BEGIN PUBLIC KEY-----", "key"), ("BEGIN CERTIFICATE", "certificate")]
)
def test_keys_and_certificates_in_files(image: Image, programs: Path, tmp_path: Path, text: str, kind: str) -> None:
    pem = tmp_path / "admin.pem"
    pem.write_text(text)
    calls = engine(programs)
    trust.require_trusted(image, strict(str(pem)))
    roots = f" --certificate-roots {pem}" if kind == "certificate" else ""
    assert verifications(calls) == [f"--quiet verify --all --{kind} {pem}{roots} {added(image)}"]
    engine(programs, code=255)
    pem.write_text(f"{text} of another")
    with pytest.raises(ImageUnusable, match="is not signed by a key"):
        trust.require_trusted(image, strict(str(pem)))


def test_a_signed_image_that_is_not_the_published_one(image: Image, programs: Path) -> None:
    """A signature covers the objects of a SIF, not the bytes between them."""
    engine(programs, signed_by(ADMIN))
    with image.path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(ImageUnusable, match=r"^digest mismatch: .* It was modified after publishing; report it to"):
        trust.require_trusted(image, strict())


def test_a_verification_is_cached_until_the_file_or_the_keys_change(image: Image, programs: Path) -> None:
    calls = engine(programs, signed_by(ADMIN, STRANGER))
    for _ in range(3):
        trust.require_trusted(image, strict())
    assert len(verifications(calls)) == 1
    trust.require_trusted(image, strict(STRANGER))
    assert len(verifications(calls)) == 2
    status = image.path.stat()
    content = image.path.read_bytes()
    image.path.write_bytes(content[:-1] + b"!")  # the same size, and as if at the same time
    os.utime(image.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ImageUnusable, match=r"^digest mismatch"):
        trust.require_trusted(image, strict())


@pytest.mark.parametrize("cache", ["", "[]", '{"x": 1}', "\0", "[" * 100_000])
def test_a_damaged_cache_proves_nothing(image: Image, programs: Path, tmp_path: Path, cache: str) -> None:
    path = tmp_path / "cache/ctrain/verified.json"
    path.parent.mkdir(parents=True)
    path.write_text(cache)
    calls = engine(programs, signed_by(ADMIN))
    trust.require_trusted(image, strict())
    assert len(verifications(calls)) == 1


def test_a_failure_is_not_cached(image: Image, programs: Path) -> None:
    engine(programs, code=1)
    with pytest.raises(ImageUnusable):
        trust.require_trusted(image, strict())
    engine(programs, signed_by(ADMIN))
    trust.require_trusted(image, strict())


@pytest.mark.parametrize(
    ("site", "error", "complaint"),
    [
        (
            Site(name="mine", scheduler="local", require_signature=True),
            SiteError,
            "site mine requires signatures but has no trusted keys",
        ),
        (strict("/nowhere.pem"), SiteError, "site mine: trusted_keys: file /nowhere.pem not found"),
        (strict("A" * 39), SiteError, "site mine: trusted_keys: file A+ not found"),
        (strict(ADMIN, ""), SiteError, "site mine: trusted_keys: file  not found"),
        (strict(), EngineError, "neither apptainer nor singularity is on PATH"),
    ],
)
@pytest.mark.usefixtures("programs")
def test_what_cannot_be_verified_is_refused(image: Image, site: Site, error: type[CtrainError], complaint: str) -> None:
    with pytest.raises(error, match=f"^{complaint}"):
        trust.require_trusted(image, site)


def test_an_image_that_was_changed_with_its_manifest_is_not_called_unsigned(image: Image, programs: Path) -> None:
    engine(programs, signed_by(ADMIN))
    forged = replace(image, manifest=replace(image.manifest, digest=f"sha256:{'0' * 64}"))
    complaint = "has signatures, but of another digest, name or version. It was changed after it was signed; report it"
    with pytest.raises(ImageUnusable, match=complaint):
        trust.require_trusted(forged, strict())


def test_a_file_that_another_key_has_signed_or_that_was_changed_is_not_called_unsigned(
    image: Image, programs: Path
) -> None:
    """Its signature is on all of it, but not valid by a trusted key: why, the engine alone could tell."""
    engine(programs, code=255)
    image.path.write_bytes(sif(more=[(SIGNATURE, b"signed")]))
    image.path.with_suffix(".json").unlink()
    complaint = "is not signed by a key that site mine trusts: another key has signed it, or it was changed since. Ask"
    with pytest.raises(ImageUnusable, match=complaint):
        trust.require_trusted(foreign.locate(image.path, lambda *_: None), strict())


@pytest.fixture
def layer(tmp_path: Path) -> UserLayer:
    """A user layer with a signature, which is valid for a stand-in alone."""
    layer = user_layer.read(write_layer(tmp_path / "my.sqsh", a_manifest()))
    content = sif(kind=0x4007, data=signatures.layer_statement(layer.digest), more=[(SIGNATURE, b"signed")])
    signatures.path_for_layer(layer.path).write_bytes(content)
    return layer


def test_a_user_layer_needs_a_trusted_signature_where_images_do(layer: UserLayer, programs: Path) -> None:
    calls = engine(programs, signed_by(ADMIN))
    trust.require_trusted_layer(layer, strict())
    assert verifications(calls) == [f"--quiet verify --all --local --json {layer.path}.sig"]
    complaint = (
        "my.sqsh is not signed by a key that site mine trusts. Ask somebody who holds a trusted key to run: ctra"
    )
    with pytest.raises(ImageUnusable, match=complaint):
        trust.require_trusted_layer(layer, strict(STRANGER))
    signatures.path_for_layer(layer.path).unlink()
    with pytest.raises(ImageUnusable, match=complaint):
        trust.require_trusted_layer(layer, strict())
    trust.require_trusted_layer(layer, Site(name="mine", scheduler="local"))
    with pytest.raises(SiteError, match="requires signatures but has no trusted keys"):
        trust.require_trusted_layer(layer, Site(name="mine", scheduler="local", require_signature=True))


def test_a_user_layer_that_was_built_again_is_not_called_unsigned(layer: UserLayer, programs: Path) -> None:
    engine(programs, signed_by(ADMIN))
    rebuilt = user_layer.read(write_layer(layer.path, a_manifest(), einops="0.8.2"))
    with pytest.raises(ImageUnusable, match=r"is not the one that my\.sqsh\.sig was made for: it was built again"):
        trust.require_trusted_layer(rebuilt, strict())

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ctrain_builder.cli import signer
from ctrain_builder.store import signatures
from ctrain_builder.store.sign import Signer
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import ImageUnusable, UsageError
from ctrain_runtime.store.store import open_store
from samples.shop import Shop

PASSPHRASE = "correct horse"
PUBLIC = "-----BEGIN PUBLIC KEY-----\nMCow\n-----END PUBLIC KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def _signer(key: Path, passphrase: str = "") -> Signer:
    return Signer(Engine("apptainer", "/nowhere", "1.4.5"), str(key), passphrase)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (PUBLIC, "is a public key or certificate. Sign with its private key"),
        (CERTIFICATE, "is a public key or certificate"),
        ("-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "is a public key or certificate"),
        ("ssh-ed25519 AAAA kim@login\n", "is a public key or certificate"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "is a key of OpenSSH. Convert it: ssh-keygen -p -m PKCS8 -f "),
        ("", "is not a private key in PEM format"),
        ("\0\1\2", "is not a private key in PEM format"),
    ],
)
def test_what_is_no_private_key_is_said_so(tmp_path: Path, text: str, complaint: str) -> None:
    key = tmp_path / "key.pem"
    key.write_text(text)
    key.chmod(0o600)
    with pytest.raises(UsageError) as caught:
        _signer(key).check()
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A private key with a passphrase."""
    path = tmp_path / "locked.pem"
    cipher = ["-aes256", "-pass", f"pass:{PASSPHRASE}"]
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", *cipher, "-out", path], check=True)
    path.chmod(0o600)
    return path


def test_a_wrong_passphrase_is_one_line_before_anything_is_copied(locked: Path) -> None:
    _signer(locked, PASSPHRASE).check()
    for passphrase in ("wrong", PASSPHRASE.upper(), "two\nlines", " "):
        with pytest.raises(UsageError) as caught:
            _signer(locked, passphrase).check()
        assert (
            str(caught.value) == f"passphrase of key {locked} is wrong, or the key is damaged. Check CTRAIN_PASSPHRASE"
        )
    with pytest.raises(UsageError, match="is encrypted and needs a passphrase"):
        _signer(locked).check()


def test_no_answer_to_the_question_for_a_passphrase(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: str) -> str:
        raise EOFError

    monkeypatch.delenv("CTRAIN_PASSPHRASE", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", ask)
    with pytest.raises(UsageError, match="no passphrase given for key"):
        signer._passphrase(str(locked))


def test_no_key_vouches_for_a_file_that_its_manifest_does_not_know(shop: Shop) -> None:
    image = open_store(shop.root).images()[0]
    image.path.chmod(0o644)
    image.path.write_text("evil!")
    with pytest.raises(
        ImageUnusable, match=rf"^digest mismatch: {image.path} is sha256:.*, its manifest records sha256:"
    ):
        signatures.sign(shop.root, image, _signer(Path("/nowhere.pem")))

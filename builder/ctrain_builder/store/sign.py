"""Signs images while they are published, and statements about them. What is signed is final: nothing is added later."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.files import atomic
from ctrain_runtime.base import command
from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.engines.apptainer import Engine
from ctrain_runtime.errors import CtrainError, StoreError, UsageError
from ctrain_runtime.images import trust
from ctrain_runtime.store import sif

_ENCRYPTED = b"ENCRYPTED"  # BEGIN ENCRYPTED PRIVATE KEY (PKCS 8), or Proc-Type: 4,ENCRYPTED
_PUBLIC = (b"BEGIN PUBLIC KEY", b"BEGIN RSA PUBLIC KEY", b"BEGIN CERTIFICATE", b"BEGIN PGP PUBLIC KEY", b"ssh-")
PGP = "pgp:"  # before the index of a key in the engine's key ring
AGENT = "gpg:"  # before the name of a key that gpg knows
_LONGEST = 3600  # seconds for reading an image
_GROUP = 1  # of all objects of an image, as engines and ctrain make them
_LINKED = str(0xF0000000 | _GROUP)  # what a signature of them is linked to, in a SIF
_SIGNATURE = ("--datatype", "5", "--signhash", "1", "--groupid", "0", "--link", _LINKED)


def may_need_passphrase(key: str) -> bool:
    """Whether a key is encrypted; of those in the engine's key ring that is not known. (For gpg's its agent asks.)"""
    return key.startswith(PGP) or (Path(key).is_file() and _ENCRYPTED in Path(key).read_bytes())


@dataclass(frozen=True)
class Signer:
    """`key` is the path of a PEM file with a private key; pgp:N for number N of `apptainer key list --secret`;
    or gpg:KEY for a key that gpg and its agent know, on a smart card maybe."""

    engine: Engine
    key: str
    passphrase: str = ""

    def check(self) -> None:
        """Raise UsageError for a key that isn't there: before gigabytes are copied."""
        if self.key.startswith(AGENT):
            self._fingerprint()
        elif self.key.startswith(PGP):
            if not self.key[len(PGP) :].isdecimal():
                raise UsageError(
                    f"{self.key!r} names no key", f"As in pgp:0; see: {self.engine.name} key list --secret"
                )
        else:
            self._check_file(Path(self.key))

    def _check_file(self, path: Path) -> None:
        """Raise UsageError unless it is a private key in PEM, safe from others, and the passphrase is right."""
        if not path.is_file():
            raise UsageError(f"key {path} not found", "Name a PEM file, pgp:N or gpg:KEY")
        text = path.read_bytes()
        if b"OPENSSH PRIVATE KEY" in text:
            raise UsageError(f"{path} is a key of OpenSSH", f"Convert it: ssh-keygen -p -m PKCS8 -f {path}")
        if b"PRIVATE KEY-----" not in text:
            if any(word in text for word in _PUBLIC):
                raise UsageError(f"{path} is a public key or certificate", "Sign with its private key")
            raise UsageError(f"{path} is not a private key in PEM format", "Name a PEM file, pgp:N or gpg:KEY")
        if path.stat().st_mode & 0o077:
            raise UsageError(f"key {path} can be read by others", f"chmod 600 {path}")
        if may_need_passphrase(self.key):
            if not self.passphrase:
                raise UsageError(f"key {path} is encrypted and needs a passphrase", "Set CTRAIN_PASSPHRASE")
            self._decrypted()

    def sign(self, image: Path) -> str:
        """Sign all objects of an image in its file. The file's digest then. Raises StoreError."""
        before = image.stat().st_mode
        image.chmod(0o600)
        try:
            if self.key.startswith(AGENT):
                self._by_agent(image)
            elif self.key.startswith(PGP):
                self._run("sign", "--keyidx", self.key[len(PGP) :], str(image), stdin=f"{self.passphrase}\n")
            else:
                with self._in_clear() as path:
                    self._run("sign", "--key", path, str(image))
        except CtrainError as error:
            hint = f"Is {self.key} a private key, and the passphrase right?"
            raise StoreError(f"the image can't be signed: {error.message}", hint) from error
        image.chmod(before)
        atomic.sync_file(image)
        return file_digest(image)

    def has_signed(self, file: Path) -> bool:
        """Whether a valid signature by this key covers all objects of a file. Raises UsageError, CtrainError."""
        if not self.key.startswith((AGENT, PGP)):
            with self._in_clear() as path:
                public = command.run(["openssl", "pkey", "-in", path, "-pubout"]).stdout
            with _in_memory(public) as path:
                return trust.verifies(self.engine, file, path)
        if self.key.startswith(PGP):
            return trust.verifies(self.engine, file, self._fingerprint_in_ring())
        with tempfile.TemporaryDirectory() as ring:  # the engine's own may lack a key that only gpg knows
            fingerprint, exported = self._fingerprint(), Path(ring, "key.asc")
            exported.write_text(command.run(["gpg", "--batch", "--armor", "--export", fingerprint]).stdout)
            command.run([self.engine.path, "--quiet", "key", "import", str(exported)], env=trust.key_environ(ring))
            return trust.verifies(self.engine, file, fingerprint, ring)

    def _fingerprint_in_ring(self) -> str:
        """Of the key with this number in the engine's key ring. Raises UsageError."""
        listed = command.run([self.engine.path, "key", "list", "--secret"], env=trust.key_environ()).stdout
        fingerprints: list[str] = re.findall(r"^\s+Fingerprint:\s+([0-9A-Fa-f]{40})$", listed, re.MULTILINE)
        number = int(self.key[len(PGP) :])
        if number >= len(fingerprints):
            hint = f"See: {self.engine.name} key list --secret"
            raise UsageError(f"the engine's key ring has no key {self.key}", hint)
        return fingerprints[number]

    def _run(self, *argv: str, stdin: str = "") -> None:
        argv = (self.engine.path, "--quiet", *argv)
        command.run(argv, env=trust.key_environ(), timeout=_LONGEST, stdin=stdin)

    @contextlib.contextmanager
    def _in_clear(self) -> Iterator[str]:
        """A path where the engine finds a PEM key. One that is encrypted is decrypted for it, in memory only."""
        if not may_need_passphrase(self.key):
            yield str(Path(self.key).resolve())
            return
        with _in_memory(self._decrypted()) as path:
            yield path

    def _decrypted(self) -> str:
        openssl = ["openssl", "pkey", "-in", self.key, "-passin", "stdin"]
        result = command.run(openssl, stdin=f"{self.passphrase}\n", check=False)
        if result.code:  # openssl says it in several lines of its own language
            raise UsageError(f"passphrase of key {self.key} is wrong, or the key is damaged", "Check CTRAIN_PASSPHRASE")
        return result.stdout

    def _by_agent(self, image: Path) -> None:
        """No engine asks gpg's agent. So it signs with a key made for that, and its statement, now signed by gpg,
        takes the place of that signature. (Signatures in SIFs: github.com/sylabs/sif, pkg/integrity.)"""
        with _in_memory(command.run(["openssl", "genpkey", "-algorithm", "ed25519"]).stdout) as path:
            self._run("sign", "--key", path, str(image))
        made = [entry.number for entry in sif.read(image).entries if entry.kind == sif.SIGNATURE]
        if len(made) != 1:
            raise StoreError(f"{image} has {len(made)} groups of objects, where one is signed")
        statement = base64.b64decode(json.loads(sif.object_bytes(image, sif.SIGNATURE) or b"")["payload"]).decode()
        fingerprint = self._fingerprint()
        clearsign = ["gpg", "--batch", "--local-user", fingerprint, "--digest-algo", "SHA256", "--clearsign"]
        signed = command.run(clearsign, timeout=_LONGEST, stdin=statement).stdout
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(signed)
            file.flush()
            self._run("sif", "del", str(made[0]), str(image))
            self._run("sif", "add", *_SIGNATURE, "--signentity", fingerprint, str(image), file.name)

    def _fingerprint(self) -> str:
        """Of the key that gpg knows by this name. Raises UsageError."""
        name = self.key[len(AGENT) :]
        hint = "As in gpg:admin@example.org; see: gpg --list-secret-keys"
        if not name:
            raise UsageError(f"{self.key!r} names no key", hint)
        try:
            listing = command.run(["gpg", "--batch", "--with-colons", "--list-secret-keys", "--", name]).stdout
        except CtrainError as error:
            raise UsageError(f"gpg has no secret key {name!r}: {error.message}", hint) from error
        return next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """The path of a file with this text that is on no disk."""
    descriptor = os.memfd_create("key")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)

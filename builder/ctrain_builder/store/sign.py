"""Signs images while they are published. What is signed is final: nothing is added to an image later."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder import atomic
from ctrain_builder.digests import of_file
from ctrain_runtime import command
from ctrain_runtime.errors import CtrainError, StoreError, UsageError
from ctrain_runtime.facts import Engine

_ENCRYPTED = b"ENCRYPTED"  # BEGIN ENCRYPTED PRIVATE KEY (PKCS 8), or Proc-Type: 4,ENCRYPTED
PGP = "pgp:"  # before the index of a key in the engine's key ring
_LONGEST = 3600  # seconds for reading an image


def may_need_passphrase(key: str) -> bool:
    """Whether a key is encrypted; of those in the engine's key ring that is not known."""
    return key.startswith(PGP) or (Path(key).is_file() and _ENCRYPTED in Path(key).read_bytes())


@dataclass(frozen=True)
class Signer:
    """`key` is the path of a PEM file with a private key, or pgp:N for number N of `apptainer key list --secret`."""

    engine: Engine
    key: str
    passphrase: str = ""

    def check(self) -> None:
        """Raise UsageError for a key that isn't there: before gigabytes are copied."""
        if self.key.startswith(PGP):
            if not self.key[len(PGP) :].isdecimal():
                raise UsageError(f"{self.key!r} names no key", "As in pgp:0; see: apptainer key list --secret")
        elif not Path(self.key).is_file():
            raise UsageError(f"there is no key {self.key}", "Name a PEM file, or pgp:N")
        elif Path(self.key).stat().st_mode & 0o077:
            raise UsageError(f"key {self.key} can be read by others", f"chmod 600 {self.key}")

    def sign(self, image: Path) -> str:
        """Sign all objects of an image in its file. The file's digest then. Raises StoreError."""
        before = image.stat().st_mode
        image.chmod(0o600)
        try:
            if self.key.startswith(PGP):
                self._run(image, "--keyidx", self.key[len(PGP) :], stdin=f"{self.passphrase}\n")
            else:
                with self._in_clear() as path:
                    self._run(image, "--key", path)
        except CtrainError as error:
            raise StoreError(
                f"the image can't be signed: {error.message}", f"Is {self.key} a private key, and the passphrase right?"
            ) from error
        image.chmod(before)
        atomic.sync_file(image)
        return of_file(image)

    def _run(self, image: Path, *options: str, stdin: str = "") -> None:
        command.run([self.engine.path, "--quiet", "sign", *options, str(image)], timeout=_LONGEST, stdin=stdin)

    @contextlib.contextmanager
    def _in_clear(self) -> Iterator[str]:
        """A path where the engine finds a PEM key. One that is encrypted is decrypted for it, in memory only."""
        if not may_need_passphrase(self.key):
            yield str(Path(self.key).resolve())
            return
        openssl = ["openssl", "pkey", "-in", self.key, "-passin", "stdin"]
        clear = command.run(openssl, stdin=f"{self.passphrase}\n").stdout
        descriptor = os.memfd_create("key")
        try:
            os.write(descriptor, clear.encode())
            yield f"/proc/{os.getpid()}/fd/{descriptor}"
        finally:
            os.close(descriptor)

"""Signs images while they are published. What is signed is final: nothing is added to an image later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ctrain_builder import atomic
from ctrain_builder.digests import of_file
from ctrain_runtime import command
from ctrain_runtime.errors import CtrainError, StoreError, UsageError
from ctrain_runtime.facts import Engine

PGP = "pgp:"  # before the index of a key in the engine's key ring
_LONGEST = 3600  # seconds for reading an image


@dataclass(frozen=True)
class Signer:
    """`key` is the path of a PEM file with a private key, or pgp:N for number N of `apptainer key list --secret`."""

    engine: Engine
    key: str

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
        is_pgp = self.key.startswith(PGP)
        options = ["--keyidx", self.key[len(PGP) :]] if is_pgp else ["--key", str(Path(self.key).resolve())]
        before = image.stat().st_mode
        image.chmod(0o600)
        try:
            command.run([self.engine.path, "--quiet", "sign", *options, str(image)], timeout=_LONGEST)
        except CtrainError as error:
            raise StoreError(f"the image can't be signed: {error.message}", f"Is {self.key} a private key?") from error
        image.chmod(before)
        atomic.sync_file(image)
        return of_file(image)

"""The code of a run on its way to a login node: packed here, unpacked there, each under the digest of its content."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Optional

from ctrain_runtime.base.paths import expand_home
from ctrain_runtime.errors import JobError
from ctrain_runtime.run import code_copy

CODE = ".code"  # in the parent directory of runs, which all nodes share
DIGITS = 24  # of a digest
# Newer Pythons ask for a filter; older ones do not know it.
_FILTER: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


@dataclass(frozen=True)
class Code:
    """A packed directory: an archive with it as its only entry. `digest` depends on names, modes and contents."""

    directory: Path
    archive: IO[bytes]
    digest: str
    files: int
    size: int

    @property
    def name(self) -> str:
        return self.directory.name


def pack(directory: Path) -> Code:
    """Pack a directory without what `code_copy` leaves out. Raises JobError, OSError."""
    if directory in (expand_home("~"), Path("/")):
        raise JobError(f"{directory} is not copied as a whole", "Change to the directory of your program")
    try:
        stays = set(code_copy.survey(directory).live)
    except JobError as error:
        hint = f"Name what stays here in {directory / code_copy.IGNORE_FILE}"
        raise JobError(error.message, hint) from error
    packed: list[int] = []

    def kept(entry: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
        below = entry.name.partition("/")[2]
        if below in stays or code_copy.is_left_out(str(directory / below)):
            return None
        if not entry.isdir():
            packed.append(entry.size)
        entry.uid = entry.gid = entry.mtime = 0  # the same content has the same digest
        entry.uname = entry.gname = ""
        return entry

    archive = tempfile.TemporaryFile()  # noqa: SIM115  # the caller reads it
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(directory, directory.name, filter=kept)
    digest = _digest(archive)
    archive.seek(0)
    return Code(directory, archive, digest, len(packed), sum(packed))


def unpack(stream: IO[bytes], place: Path) -> None:
    """Unpack what has the digest `place.name` to that place, whole or not at all. Raises OSError, JobError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        with tempfile.TemporaryFile(dir=temporary) as archive:
            shutil.copyfileobj(stream, archive)
            if _digest(archive) != place.name:
                raise JobError("the code has not arrived whole", "Retry the same line")
            archive.seek(0)
            with tarfile.open(fileobj=archive) as tar:
                tar.extractall(temporary, **_FILTER)  # noqa: S202  # the user's own machine has packed it
        if not place.exists():
            temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _digest(archive: IO[bytes]) -> str:
    archive.seek(0)
    digest = hashlib.sha256()
    while chunk := archive.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()[:DIGITS]

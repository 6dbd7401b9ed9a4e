"""SHA-256 digests of files, read in chunks: images have many gigabytes. How digests are shown, and taken as arguments.

Digests are written KIND:HEX. The kind is sha256, of a file; or, in a builder's cache, sha256-regions
(docs/store-format.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Callable, Optional

CHUNK_BYTES = 1 << 20
TICK_BYTES = 256 * CHUNK_BYTES
SHOWN_DIGITS = 12


def read_chunks(file: IO[bytes], size: Optional[int] = None) -> Iterator[bytes]:
    """The next `size` bytes of a file, or all that are left, in chunks; fewer if it ends before."""
    left = size
    while chunk := file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
        yield chunk
        left = None if left is None else left - len(chunk)


def file_digest(
    path: Path, offset: int = 0, size: Optional[int] = None, tick: Callable[[int], None] = lambda _bytes: None
) -> str:
    """The digest of a file, or of `size` bytes of it, as in sha256:9f2c...

    `tick` is called now and then with the number of bytes that were read. Raises OSError.
    """
    sha, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        file.seek(offset)
        for chunk in read_chunks(file, size):
            sha.update(chunk)
            done += len(chunk)
            if done % TICK_BYTES < CHUNK_BYTES:
                tick(done)
    return f"sha256:{sha.hexdigest()}"


def kind(digest: str) -> str:
    """As in sha256, or sha256-regions."""
    return digest.partition(":")[0]


def short(digest: str) -> str:
    """A digest as people see it, as in sha256:9f2c41d0a1b2; "" for none."""
    return digest[: len(kind(digest)) + 1 + SHOWN_DIGITS]


def matches(digest: str, wanted: str) -> bool:
    """Whether `wanted` is the digest, or as much of it as `short` shows, or more."""
    return wanted == digest or (len(wanted) >= len(short(digest)) and digest.startswith(wanted))

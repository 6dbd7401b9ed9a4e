"""Passwords in the addresses of proxies, mirrors and package indexes: kept out of logs, errors and layers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from ctrain_builder.tree import Tree
from ctrain_runtime.base.digest import read_chunks
from ctrain_runtime.errors import BuildError

_USER = re.compile(r"://([^/\n]+)@")
_LOGIN = re.compile(r"://[^/\s]+@")
_SHORTEST = 4  # characters; a shorter one is part of too much else, and is looked for with its user only
BY_NO_CHANCE = 8  # characters; files that have nothing to do with a secret of this length don't hold it
_MASK = b"****"


def find(texts: Iterable[str]) -> tuple[str, ...]:
    """The secrets in addresses like http://USER:PASSWORD@HOST or https://TOKEN@HOST, in each way they may be shown."""
    found: set[str] = set()
    for login in (match[1] for text in texts for match in _USER.finditer(text)):
        user, colon, password = login.partition(":")
        found |= {f"{user}:{password}@", f"{user}:{unquote(password)}@"} if colon else set()
        found |= {word for word in (password or user, unquote(password or user)) if len(word) >= _SHORTEST}
    return tuple(sorted(found, key=len, reverse=True))


def mask(text: bytes, secrets: Iterable[str]) -> bytes:
    """`text` without the secrets."""
    for secret in secrets:
        text = text.replace(secret.encode(), _MASK)
    return text


def mask_logins(text: str) -> str:
    """`text` without the logins in its addresses, whosoever they are."""
    return _LOGIN.sub(f"://{_MASK.decode()}@", text)


def mask_file(path: Path, secrets: Iterable[str], start: int) -> None:
    """Take the secrets out of a file, from the byte `start` on."""
    with path.open("r+b") as file:
        file.seek(start)
        before = file.read()
        after = mask(before, secrets)
        if after != before:
            file.seek(start)
            file.write(after)
            file.truncate()


def refuse(tree: Tree, names: Iterable[PurePosixPath], secrets: Iterable[str]) -> None:
    """Raise BuildError if one of these files holds a secret."""
    wanted = [secret.encode() for secret in secrets]
    longest = max(map(len, wanted), default=0)
    for name in names if wanted else ():
        with tree.open(name) as file:
            end = b""
            for chunk in read_chunks(file):
                end = end[-longest:] + chunk
                if any(secret in end for secret in wanted):
                    what = f"/{name} of the layer holds a password of the build host's proxy, mirror or package index"
                    raise BuildError(what, "Remove the file, or the address in it, at the end of %post")

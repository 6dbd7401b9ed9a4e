"""Build secrets, and passwords in addresses of proxies, mirrors and indexes: kept out of logs, errors and layers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from ctrain_builder.files.tree import Tree
from ctrain_runtime.base.digest import read_chunks
from ctrain_runtime.errors import BuildError, UsageError

_USER = re.compile(r"://([^/\n]+)@")
_LOGIN = re.compile(r"://[^/\s]+@")
_SHORTEST = 4  # characters; a shorter one is part of too much else, and is looked for with its user only
BY_NO_CHANCE = 8  # characters; files that have nothing to do with a secret of this length don't hold it
_MASK = b"****"
_LARGEST = 65536  # bytes of a build secret
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_FRAME = "-----"  # begins the first and the last line of a PEM file, which many files have


@dataclass(frozen=True)
class BuildSecret:
    """A file of the build host that %post sees as /mnt/secrets/NAME. `words` are its lines: what logs and layers must
    not hold."""

    name: str
    path: Path
    words: tuple[str, ...]


def read_secret(name: str, path: Path) -> BuildSecret:
    """The secret in a file. Raises UsageError."""
    path = path.absolute()
    if not _NAME.fullmatch(name):
        raise UsageError(f"--secret: {name!r} is not a name", "Use letters, digits, '_', '.' and '-'")
    if {":", ","} & {*str(path)}:
        raise UsageError(f"--secret {name}: {path} has a ':' or ',' in its path", "Move it: engines could not mount it")
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"--secret {name}: cannot read {path}: {error.strerror}") from error
    if len(text) > _LARGEST:
        raise UsageError(f"--secret {name}: {path} has more than {_LARGEST} bytes", "Is it the right file?")
    lines = (line.strip() for line in text.decode("utf-8", "replace").splitlines())
    words = {line for line in lines if len(line) >= BY_NO_CHANCE and not line.startswith(_FRAME)}
    if not words:
        hint = f"Logs and layers are searched for lines of {BY_NO_CHANCE} characters and more"
        raise UsageError(f"--secret {name}: {path} has no line that could be told from other text", hint)
    return BuildSecret(name, path, tuple(sorted(words, key=len, reverse=True)))


def find(texts: Iterable[str]) -> tuple[str, ...]:
    """The secrets in addresses like http://USER:PASSWORD@HOST or https://TOKEN@HOST, in each way they may be shown."""
    secrets: set[str] = set()
    for login in (match[1] for text in texts for match in _USER.finditer(text)):
        user, colon, password = login.partition(":")
        secrets |= {f"{user}:{password}@", f"{user}:{unquote(password)}@"} if colon else set()
        secrets |= {word for word in (password or user, unquote(password or user)) if len(word) >= _SHORTEST}
    return tuple(sorted(secrets, key=len, reverse=True))


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
                    hint = "Remove the file, or what is secret in it, at the end of %post"
                    raise BuildError(f"{what}, or a build secret", hint)

"""What pip installs: a wheel, by default that which this ctrain was installed from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ctrain_runtime.base.digest import file_digest
from ctrain_runtime.errors import UsageError

_WHEEL = re.compile(r"ctrain-([^-/]+)-py3-none-any\.whl")
_MAKE_ONE = "Pass --wheel FILE; in a checkout make one with: pip wheel --no-deps ."


@dataclass(frozen=True)
class Source:
    """A version of ctrain, and the URL of its wheel: never a name, which public indexes have for another project."""

    version: str
    url: str

    def requirement(self, extras: str = "") -> str:
        """As pip reads it (PEP 508)."""
        return f"ctrain[{extras}] @ {self.url}" if extras else f"ctrain @ {self.url}"


def from_wheel(path: Path) -> Source:
    """Raises UsageError if it is not a wheel of ctrain."""
    name = _WHEEL.fullmatch(path.name)
    if not name:
        raise UsageError(
            f"{path} does not have the name of a wheel of ctrain: ctrain-VERSION-py3-none-any.whl", _MAKE_ONE
        )
    if not path.is_file():
        raise UsageError(f"wheel not found: {path}", _MAKE_ONE)
    return Source(name[1], path.absolute().as_uri())


def from_running() -> Source:
    """What pip installed this ctrain from, by its own note (PEP 610). Raises UsageError if that is no wheel now."""
    running = metadata.distribution("ctrain")
    note = running.read_text("direct_url.json")
    if note is None:
        raise UsageError("this ctrain was installed by its name, not from a wheel that could be taken again", _MAKE_ONE)
    origin: Any = json.loads(note)
    url = urlsplit(origin["url"])
    if "archive_info" not in origin:
        raise UsageError(f"this ctrain was not installed from a wheel, but from {origin['url']}", _MAKE_ONE)
    if url.scheme != "file":
        return Source(running.version, origin["url"])
    path = Path(unquote(url.path))
    digest = origin["archive_info"].get("hashes", {}).get("sha256")
    if path.is_file() and digest and file_digest(path) != f"sha256:{digest}":
        raise UsageError(f"{path} has changed since this ctrain was installed from it", "Pass --wheel FILE")
    return from_wheel(path)

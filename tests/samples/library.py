"""A stand-in for a container library, as `apptainer pull library://...` asks one.

The real one is a service (the Sylabs Cloud Library) that tests cannot reach, and its server cannot be had. This one
answers as the Sylabs Container Library API 1.0 says (openapi.yml of scs-library-client) and as that client reads it:
/version, /v1/images/REF, and /v1/imagefile/REF, which redirects to where parts of the file are served. It has no
registry behind it: /v1/oci-redirect is not found. The real engine pulls from it, so what the client needs is here; what
a real library does besides, as logins and its own storage, is untested.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from ctrain_runtime.base.digest import file_digest
from samples.registry import Answer, Front, Request, front

_JSON = {"Content-Type": "application/json"}


@dataclass
class Library:
    """A running library. `images` are its public files by ENTITY/COLLECTION/NAME:TAG, all for `arch`; `broken` are sent
    instead of what is announced."""

    front: Front
    images: dict[str, Path] = field(default_factory=dict)
    broken: dict[str, Path] = field(default_factory=dict)
    arch: str = "amd64"

    def reference(self, name: str) -> str:
        return f"library://{self.front.host}/{name}"

    def downloads(self) -> int:
        """How often a pull has asked for a file."""
        return len(self.front.asked("/v1/imagefile/"))

    def answer(self, request: Request) -> Answer:
        url = urlsplit(request.path)
        if url.path == "/version":
            return _data({"version": "v1.0.0", "apiVersion": "2.0.0-alpha.2"})
        call, _, name = url.path.removeprefix("/v1/").partition("/")
        if call not in ("images", "imagefile", "parts") or name not in self.images:
            return _error(404, "Not found")
        if call == "parts":
            return _part(self.broken.get(name, self.images[name]), request.headers["range"])
        if parse_qs(url.query).get("arch") != [self.arch]:
            return _error(404, "Not found")
        if call == "imagefile":
            return Answer(303, {"Location": f"http://{self.front.host}/v1/parts/{name}"}, b"")
        file = self.images[name]
        known = {"hash": file_digest(file).replace(":", "."), "size": file.stat().st_size, "uploaded": True}
        return _data({"id": name, "arch": self.arch, "tags": [name.partition(":")[2]], **known})


@contextlib.contextmanager
def serve() -> Iterator[Library]:
    with front() as running:
        library = Library(running)
        running.stand = library.answer
        yield library


def _data(data: object) -> Answer:
    return Answer(200, _JSON, json.dumps({"data": data}).encode())


def _error(code: int, message: str) -> Answer:
    return Answer(code, _JSON, json.dumps({"error": {"code": code, "message": message}}).encode())


def _part(file: Path, wanted: str) -> Answer:
    """The bytes that a header `Range: bytes=FIRST-LAST` names."""
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
    assert match, wanted
    first, last = int(match[1]), int(match[2])
    with file.open("rb") as opened:
        opened.seek(first)
        body = opened.read(last + 1 - first)
    return Answer(206, {"Content-Range": f"bytes {first}-{last}/{file.stat().st_size}"}, body)

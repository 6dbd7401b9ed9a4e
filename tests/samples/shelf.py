"""The least of a registry, in memory: what clients put there with tags they find again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from ctrain_runtime.registry.client import digest_of
from samples.registry import Answer, Request

_PATH = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>blobs|manifests)/(?P<name>[^?]*)(?:\?digest=(?P<digest>.+))?")


@dataclass
class Shelf:
    """What a samples.registry.Front can be given as its `stand`."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)  # by tag
    upload: bytes = b""

    def __call__(self, request: Request) -> Optional[Answer]:
        match = _PATH.fullmatch(request.path.replace("%3A", ":"))
        assert match, request.path
        if request.method in ("GET", "HEAD"):
            return self._read(request, self.blobs if match["kind"] == "blobs" else self.manifests, match["name"])
        if match["kind"] == "manifests":
            self.manifests[match["name"]] = request.content
            return Answer(201, {}, b"")
        begun = "" if request.method == "POST" else self.upload
        self.upload = (begun or b"") + request.content
        if request.method == "PUT":
            self.blobs[match["digest"]] = self.upload
            return Answer(201 if digest_of(self.upload) == match["digest"] else 400, {}, b"")
        return Answer(202, {"Location": f"/v2/{match['repository']}/blobs/uploads/1"}, b"")

    def _read(self, request: Request, kept: dict[str, bytes], name: str) -> Answer:
        if name not in kept:
            return Answer(404, {}, b"{}")
        start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        body = kept[name][int(start[1]) if start else 0 :]
        headers = {"Content-Length": str(len(body))}
        return Answer(206 if start else 200, headers, b"" if request.method == "HEAD" else body)

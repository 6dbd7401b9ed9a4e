"""Published images in a registry, as `apptainer push` and `pull` know them by oras://: a SIF is the only layer.

The configuration, which engines don't read, is ctrain's manifest. What is sent and what comes is compared with the
digests in it. What was interrupted goes on where it was, if the registry still knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote

from ctrain_builder.files import atomic, locks, manifest_writer
from ctrain_builder.files.digests import ReadAt
from ctrain_runtime.base.text import format_size
from ctrain_runtime.errors import ImageUnusable, RegistryError
from ctrain_runtime.registry.client import PUSH, Reference, RegistryClient, digest_of
from ctrain_runtime.registry.http_client import GET, Request, Response, Unreachable, follow
from ctrain_runtime.store.manifest import Manifest, parse_manifest

# Apptainer: internal/pkg/client/oras/config.go and layer.go; SingularityCE has the same
_CONFIG = "application/vnd.sylabs.sif.config.v1+json"
_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"
_OCI = "application/vnd.oci.image.manifest.v1+json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNK = 16 << 20  # bytes of an upload at a time: some storage services want at least 5 MB
_SMALL = 1_000_000  # bytes of a SIF that is read into memory
_SLOWEST = 100_000  # bytes a second that can be sent
_CHECKED = 50_000_000  # bytes a second that a registry reads to check what it was sent
_WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds after failures in a row


class Foreign(RegistryError):
    """What a tag points to is no image of a ctrain store."""


def read(client: RegistryClient, ref: Reference) -> Manifest:
    """The manifest of the image that a tag points to. Raises Foreign, RegistryError; ConfigError for a damaged one."""
    config, layer = _sif(client, ref)
    text = client.blob(config, ref).body
    if b'"schema"' not in text:
        raise _foreign(ref, "it has no manifest of ctrain")
    manifest = parse_manifest(text, str(ref))
    right = _DIGEST.fullmatch(manifest.digest) and manifest.size > 0 and manifest.release > 0
    if not right or (layer.get("digest"), layer.get("size")) != (manifest.digest, manifest.size):
        raise RegistryError(
            f"{ref} holds a different image than its manifest records", f"Report it to the administrators of {ref.host}"
        )
    return manifest


def _sif(client: RegistryClient, ref: Reference) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What names the configuration and the SIF of an artifact. Raises Foreign, RegistryError."""
    _, oci = client.manifest(ref)
    config, layers = oci.get("config"), oci.get("layers")
    layer = layers[0] if isinstance(layers, list) and len(layers) == 1 and isinstance(layers[0], dict) else {}
    if not isinstance(config, dict) or (config.get("mediaType"), layer.get("mediaType")) != (_CONFIG, _LAYER):
        raise _foreign(ref, "it is not a SIF image")
    return config, layer


def _foreign(ref: Reference, what: str) -> Foreign:
    return Foreign(f"{ref} is not from a ctrain store: {what}", "Put images there with: ctrain store sync")


def read_small(client: RegistryClient, ref: Reference) -> bytes:
    """The SIF that a tag points to, which fits in memory. Raises Foreign, RegistryError."""
    _, layer = _sif(client, ref)
    size = layer.get("size")
    if not isinstance(size, int) or size > _SMALL:
        raise _foreign(ref, "it is too large for a signature")
    return client.blob(layer, ref).body


def push_small(client: RegistryClient, ref: Reference, content: bytes, name: str) -> None:
    """Make a tag point to a SIF that fits in memory. Raises RegistryError."""
    _push(client, ref, put_small(client, ref, content), put_small(client, ref, b"{}"), name)


class Download:
    """Reads a blob bit by bit and in order; goes on where it was when the connection is cut."""

    def __init__(self, client: RegistryClient, ref: Reference, digest: str) -> None:
        self._client, self._ref, self._url = client, ref, f"{ref.api}/blobs/{digest}"
        self._at = 0
        self._parts: Iterator[bytes] = iter(())

    def read(self, size: int, at: int) -> bytes:
        """Some bytes from there on, at most `size`. Raises RegistryError."""
        problem = Unreachable(
            f"{self._ref.host} sends less of {self._ref} than it should", "Report it to its administrators"
        )
        if at != self._at:
            self._parts = iter(())
        for wait in _WAITS:
            try:
                if part := next(self._parts, b"") or next(self._from(at), b""):
                    self._at = at + len(part)
                    return part[:size]
            except Unreachable as error:
                problem = error
            self._parts = iter(())
            self._client.pause(wait)
        raise Unreachable(f"{problem.message}, after {format_size(at)}", problem.hint)

    def _from(self, at: int) -> Iterator[bytes]:
        answer = self._client.ask(self._url, self._ref, {"Range": f"bytes={at}-" if at else ""}, Request(stream=True))
        if answer.status not in (200, 206):
            raise self._client.refusal(answer, self._ref)
        self._parts = answer.parts if answer.status == 206 else _after(at, answer.parts)  # 200: it knows no ranges
        return self._parts


def push(
    client: RegistryClient,
    ref: Reference,
    manifest: Manifest,
    read: ReadAt,
    notes: Path,
    done: Callable[[int], None],
) -> None:
    """Bring an image, whose bytes `read` gives, to a repository. It has no tag there yet.

    In the directory `notes` is kept how far the upload has come. Raises ImageUnusable, RegistryError.
    """
    note = notes / f"upload-{digest_of(f'{ref.name} {manifest.digest}'.encode())[-16:]}"
    with locks.hold(note.with_suffix(".lock")):
        sent = put_blob(client, ref, manifest.digest, manifest.size, read, done, note)
        if sent != manifest.digest:
            note.unlink()
            what = f"{manifest.name} {manifest.version} is damaged: it has the digest {sent}"
            raise ImageUnusable(what, f"Its manifest records {manifest.digest}; see: ctrain store verify")


def put_blob(
    client: RegistryClient,
    ref: Reference,
    digest: str,
    size: int,
    read: ReadAt,
    done: Callable[[int], None],
    note: Optional[Path] = None,
) -> str:
    """Bring a blob, whose bytes `read` gives, to a repository that lacks it. The digest of what was sent: only if it is
    `digest`, the repository has it now. In the file `note` is kept how far it has come. Raises RegistryError."""
    if not _has_blob(client, ref, digest, size):
        upload = _Upload(client, ref, note)
        upload.resume()
        sent = _send(upload, size, read, client.pause, done)
        if sent != digest:
            return sent
        upload.finish(digest, size)
    done(size)
    return digest


def tag(client: RegistryClient, ref: Reference, manifest: Manifest) -> None:
    """Make a tag point to an image that is in its repository. Raises RegistryError."""
    config = put_small(client, ref, manifest_writer.as_text(manifest).encode())
    _push(client, ref, {"digest": manifest.digest, "size": manifest.size}, config, manifest.file_name)


def put_small(client: RegistryClient, ref: Reference, content: bytes) -> Mapping[str, Any]:
    """Bring a small blob to a repository; what names it in a manifest."""
    digest, size = digest_of(content), len(content)
    if not _has_blob(client, ref, digest, size):
        upload = _Upload(client, ref)
        upload.resume()
        upload.finish(digest, size, content)
    return {"digest": digest, "size": size}


def _push(client: RegistryClient, ref: Reference, sif: Mapping[str, Any], config: Mapping[str, Any], name: str) -> None:
    """Make a tag point to the SIF and the configuration, which are in its repository."""
    layer = {"mediaType": _LAYER, **sif, "annotations": {"org.opencontainers.image.title": name}}
    put_manifest(client, ref, {"config": {"mediaType": _CONFIG, **config}, "layers": [layer]})


def put_manifest(client: RegistryClient, ref: Reference, content: Mapping[str, Any]) -> None:
    """Make a tag point to an artifact whose blobs are in its repository. Raises RegistryError."""
    body = json.dumps({"schemaVersion": 2, "mediaType": _OCI, **content}).encode()
    url = f"{ref.api}/manifests/{ref.tag}"
    answer = client.ask(url, ref, {"Content-Type": _OCI}, Request("PUT", body), PUSH)
    if answer.status != 201:
        raise client.refusal(answer, ref, PUSH)
    _check(answer, digest_of(body), ref)


def _send(upload: _Upload, size: int, read: ReadAt, pause: Callable[[float], None], done: Callable[[int], None]) -> str:
    """Send what a registry does not have yet. The digest of all, what it has included."""
    sha, hashed, furthest, failures = hashlib.sha256(), 0, upload.at, 0
    while min(hashed, upload.at) < size:
        had = hashed < upload.at
        start, end = (hashed, min(size, upload.at)) if had else (upload.at, size)
        chunk = _read(read, start, min(_CHUNK, end - start))
        if not chunk:
            break  # it became shorter: its digest will be another
        sha.update(chunk[hashed - start :])
        hashed = max(hashed, start + len(chunk))
        if not had:
            try:
                upload.add(chunk)
            except Unreachable:
                if failures == len(_WAITS):
                    raise
                pause(_WAITS[failures])
                failures += 1
                upload.resume()
            if upload.at > furthest:
                furthest, failures = upload.at, 0
        done(upload.at)
    return f"sha256:{sha.hexdigest()}"


class _Upload:
    """What a registry takes bit by bit: `at` is how many bytes it has. Where it takes them is noted in a file."""

    def __init__(self, client: RegistryClient, ref: Reference, note: Optional[Path] = None) -> None:
        self._client, self._ref, self._note = client, ref, note
        self._url, self.at = "", 0
        if note:
            with contextlib.suppress(FileNotFoundError):
                self._url = note.read_text(encoding="utf-8")

    def resume(self) -> None:
        """Go on with what was begun, where the registry knows of it, or else begin."""
        answer = self._request(self._url, GET) if self._url else None
        has = re.fullmatch(r"(?:bytes=)?0-(\d+)", answer.headers.get("Range", "")) if answer else None
        if answer and has and answer.status == 204:
            self._goes_on(answer, int(has[1]) + 1 if int(has[1]) else 0)  # 0-0 is what registries say of nothing
            return
        answer = self._request(f"{self._ref.api}/blobs/uploads/", Request("POST"))
        if answer.status != 202:
            raise self._client.refusal(answer, self._ref, PUSH)
        self._goes_on(answer, 0)

    def add(self, chunk: bytes) -> None:
        """Raises RegistryError; Unreachable when it should be resumed."""
        end = self.at + len(chunk)
        call = Request("PATCH", chunk, len(chunk) / _SLOWEST)
        with _undisturbed():
            answer = self._request(self._url, call, **{"Content-Range": f"{self.at}-{end - 1}"})
            if answer.status in (401, 403):
                raise self._client.refusal(answer, self._ref, PUSH)
            if answer.status != 202:
                what = f"{self._ref.host} answers {answer.status} {answer.reason} to a part of an upload"
                raise Unreachable(what, "It must accept uploads in parts; if it does, retry later")
            self._goes_on(answer, end)

    def finish(self, digest: str, size: int, body: bytes = b"") -> None:
        """`body` is the rest. From now on the registry has it."""
        url = f"{self._url}{'&' if '?' in self._url else '?'}digest={quote(digest)}"
        answer = self._request(url, Request("PUT", body, len(body) / _SLOWEST + size / _CHECKED))
        if self._note:
            self._note.unlink()
        if answer.status != 201 and not _has_blob(self._client, self._ref, digest, size):
            raise self._client.refusal(answer, self._ref, PUSH)
        _check(answer, digest, self._ref)

    def _goes_on(self, answer: Response, at: int) -> None:
        self._url, self.at = follow(answer.url, answer.headers.get("Location", "")), at
        if self._note:
            atomic.write_text(self._note, self._url, 0o600)

    def _request(self, url: str, call: Request, **headers: str) -> Response:
        kind = {"Content-Type": "application/octet-stream"} if call.body else {}
        return self._client.ask(url, self._ref, {**kind, **headers}, call, PUSH)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait: many registries forget an upload when one part of it is cut off."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_blob(client: RegistryClient, ref: Reference, digest: str, size: int) -> bool:
    answer = client.ask(f"{ref.api}/blobs/{digest}", ref, {}, Request("HEAD"), PUSH)
    if answer.status not in (200, 404):
        raise client.refusal(answer, ref, PUSH)
    return answer.status == 200 and answer.headers.get("Content-Length") == str(size)


def _check(answer: Response, digest: str, ref: Reference) -> None:
    """That a registry has taken what was sent."""
    claimed = answer.headers.get("Docker-Content-Digest", digest)
    if claimed != digest:
        raise RegistryError(
            f"{ref.host} says it has {claimed} now, but {digest} was sent", "Report it to its administrators"
        )


def _read(read: ReadAt, start: int, size: int) -> bytes:
    chunk = b""
    while len(chunk) < size and (part := read(size - len(chunk), start + len(chunk))):
        chunk += part
    return chunk


def _after(count: int, parts: Iterator[bytes]) -> Iterator[bytes]:
    """All bytes but the first `count`."""
    for part in parts:
        if part[count:]:
            yield part[count:]
        count = max(0, count - len(part))

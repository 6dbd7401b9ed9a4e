"""A real registry (Debian's docker-registry) on loopback, images for it, and a front that lets it misbehave."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import http.client
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Optional
from urllib.parse import parse_qs, urlsplit

NAME = "nvidia/pytorch"
TAGS = ["22.03-py3", "24.12-py3", "25.01-py3", "25.04-py3", "26.08-py3"]
USER, PASSWORD = "kim", "open sesame"  # of a registry that lives for one test
_HTPASSWD = f"{USER}:$2b$04$Sc8IMZWMidiYsdacQcPeCeAPuDP5RwOvFSUm6cFWfFywRkg2dCG6y\n"
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@dataclass(frozen=True)
class Registry:
    """A running docker-registry. `host` is what stands before the first / of a reference, as in 127.0.0.1:41873."""

    host: str
    login: tuple[str, ...] = ()  # skopeo's option

    def push(self, layout: Path, name: str) -> str:
        """Push the OCI layout (all its architectures) as `name`, as in nvidia/pytorch:24.12-py3; its digest."""
        digest = layout.parent / f"{layout.name}.digest"
        # Rows, as they are read.
        # fmt: off
        argv = ["skopeo", "--insecure-policy", "copy", "--quiet", "--all", "--preserve-digests",
                "--dest-tls-verify=false", *self.login, f"--digestfile={digest}",
                f"oci:{layout}", f"docker://{self.host}/{name}"]
        # fmt: on
        subprocess.run(argv, check=True, timeout=120)
        return digest.read_text().strip()

    def docker_config(self, folder: Path) -> Path:
        """A file as `docker login` and `apptainer registry login` write it."""
        path = folder / "config.json"
        path.write_text(json.dumps({"auths": {self.host: {"auth": BASIC.split()[1]}}}))
        return path


@contextlib.contextmanager
def serve(folder: Path, *, password: bool = False, certificate: Optional[Path] = None) -> Iterator[Registry]:
    """A registry that keeps its images in `folder`.

    With `password` it lets only USER in; with `certificate` (a .pem file, its .key beside it) it speaks https.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(_HTPASSWD)
    tls = {"certificate": str(certificate), "key": str(certificate.with_suffix(".key"))} if certificate else {}
    config = {
        "version": 0.1,
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}, "delete": {"enabled": True}},
        "http": {"addr": "127.0.0.1:0", "secret": "none", "tls": tls},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}} if password else {},
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    log = folder / "log"
    with log.open("wb") as out:
        # It ends with the tests, also when they are killed.
        argv = ["setpriv", "--pdeathsig", "KILL", "docker-registry", "serve", str(folder / "config.yml")]
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        login = (f"--dest-creds={USER}:{PASSWORD}",) if password else ()
        yield Registry(_address(process, log), login)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """HOST:PORT, as the registry says once it listens."""
    for _ in range(600):
        said = log.read_text()
        if found := re.search(r"listening on ([\d.]+:\d+)", said):
            return found[1]
        assert process.poll() is None, said
        time.sleep(0.05)
    raise AssertionError(f"docker-registry does not listen: {said}")


def oci_layout(
    folder: Path,
    files: Mapping[str, bytes] = {"etc/hello": b"hello\n"},  # read
    *,
    env: Sequence[str] = (),
    labels: Mapping[str, str] = {},  # read
    arches: Sequence[str] = ("amd64",),
) -> Path:
    """An image as a folder in OCI layout: one layer with `files` {path: content}; of several arches, an index.

    A path whose content starts with #! or ELF is executable. The same arguments give the same digests.
    """
    return oci_layout_of_tar(folder, _tar(files), env=env, labels=labels, arches=arches)


def oci_layout_of_tar(
    folder: Path,
    tar: bytes,
    *,
    env: Sequence[str] = (),
    labels: Mapping[str, str] = {},  # read
    arches: Sequence[str] = ("amd64",),
) -> Path:
    """oci_layout() with the layer as a tar file (uncompressed)."""
    return oci_layout_of_tars(folder, [tar], env=env, labels=labels, arches=arches)


def oci_layout_of_tars(
    folder: Path,
    tars: Sequence[bytes],
    *,
    env: Sequence[str] = (),
    labels: Mapping[str, str] = {},  # read
    arches: Sequence[str] = ("amd64",),
) -> Path:
    """The same with several layers, the lowest first."""
    (folder / "blobs/sha256").mkdir(parents=True)
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    layers = [_blob(folder, gzip.compress(tar, mtime=0), kind) for tar in tars]
    diffs = [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]
    manifests = []
    for arch in arches:
        settings = {"Env": ["PATH=/usr/bin:/bin", f"ARCH={arch}", *env], "Labels": dict(labels)}
        rootfs = {"type": "layers", "diff_ids": diffs}
        config = {"architecture": arch, "os": "linux", "config": settings, "rootfs": rootfs}
        config_blob = _json_blob(folder, config, "application/vnd.oci.image.config.v1+json")
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config_blob, "layers": layers}
        described = _json_blob(folder, manifest, _MANIFEST)
        manifests.append({**described, "platform": {"architecture": arch, "os": "linux"}})
    if len(arches) > 1:
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}
        manifests = [_json_blob(folder, index, _INDEX)]
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o755 if content.startswith((b"#!", b"\x7fELF")) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _json_blob(folder: Path, data: Mapping[str, Any], media_type: str) -> dict[str, Any]:
    return _blob(folder, json.dumps(data).encode(), media_type)


def _blob(folder: Path, content: bytes, media_type: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs/sha256" / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


@dataclass
class Request:
    """What a client asked a Front for."""

    method: str
    path: str
    headers: dict[str, str]
    content: bytes = b""

    @property
    def body(self) -> str:
        return self.content.decode()


@dataclass
class Answer:
    """What the registry answers. A fault changes it before the client sees it."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunk: Optional[int] = None  # bytes sent at a time, with `pause` seconds in between
    pause: float = 0
    cut: bool = False  # the connection ends in the middle of the body
    silence: float = 0  # seconds in the middle of the body


# Given the request, either the whole answer, or None: ask the registry.
Stand = Callable[[Request], Optional[Answer]]
Fault = Callable[[Request, Answer], None]


@dataclass
class Front:
    """A forwarding proxy before a registry. `stand` may answer in its place, `fault` spoils its answers."""

    host: str = ""
    stand: Stand = lambda _: None
    fault: Fault = lambda _, __: None
    requests: list[Request] = field(default_factory=list)

    def asked(self, part: str) -> list[Request]:
        """The requests whose path contains `part`, in order."""
        return [request for request in self.requests if part in request.path]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients that gave up are what tests are about
            super().handle_error(request, client_address)


@contextlib.contextmanager
def front(registry: Optional[Registry] = None) -> Iterator[Front]:
    """A Front on a port of its own; without a registry all its answers come from `stand`."""
    made = Front()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # http.server's name
            headers = {name.lower(): ", ".join(self.headers.get_all(name, ())) for name in self.headers}
            content = self.rfile.read(int(headers.get("content-length", 0)))
            request = Request(self.command, self.path, headers, content)
            made.requests.append(request)
            answer = made.stand(request)
            if answer is None:
                answer = _forward(registry, request) if registry else Answer(404, {}, b"{}")
                made.fault(request, answer)
            _send(self, answer)

        do_HEAD = do_POST = do_PATCH = do_PUT = do_CONNECT = do_GET  # noqa: N815  # the names that http.server calls

        def log_message(self, *_: object) -> None: ...

    server = _Server(("127.0.0.1", 0), Handler)
    made.host = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


_PASSED_ON = ("accept", "authorization", "content-type", "content-range", "range", "host")  # host: for its links


def _forward(registry: Registry, request: Request) -> Answer:
    connection = http.client.HTTPConnection(registry.host, timeout=30)
    headers = {name: value for name, value in request.headers.items() if name in _PASSED_ON}
    connection.request(request.method, request.path, request.content, headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    left_out = ("date", *(["content-length"] if request.method != "HEAD" else []))
    kept = {name: value for name, value in answer.getheaders() if name.lower() not in left_out}
    return Answer(answer.status, kept, body)


def _send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    handler.send_response(answer.status)
    for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if answer.cut:
        handler.wfile.write(answer.body[: len(answer.body) // 2])
        handler.close_connection = True
        return
    if answer.silence:
        handler.wfile.write(answer.body[: len(answer.body) // 2])
        time.sleep(answer.silence)
        answer.body = answer.body[len(answer.body) // 2 :]
    size = answer.chunk or len(answer.body) or 1
    for start in range(0, len(answer.body), size):
        time.sleep(answer.pause)
        handler.wfile.write(answer.body[start : start + size])


def demand_token(front: Front, *, password: bool = True, realm: str = "") -> None:
    """Let a Front demand Bearer tokens, as nvcr.io does, and issue them itself at /token.

    A stand-in for an authorization service: the tokens are plain words and the registry behind needs none. With
    `password` only USER gets a token that counts; others get one that doesn't, as Docker's own service does.
    """

    def stand(request: Request) -> Optional[Answer]:
        url = urlsplit(request.path)
        if url.path == "/token":
            scope = parse_qs(url.query).get("scope", [""])[0]
            good = not password or request.headers.get("authorization") == BASIC
            return Answer(200, {}, json.dumps({"token": f"{'good' if good else 'useless'} {scope}"}).encode())
        repository = re.split("/(?:manifests|blobs|tags)/", url.path[len("/v2/") :])[0]
        scope = f"repository:{repository}:pull" if repository != "_catalog" else "registry:catalog:*"
        enough = (f"Bearer good {scope},push", *([f"Bearer good {scope}"] if request.method in ("GET", "HEAD") else []))
        if request.headers.get("authorization") in enough:
            return None
        where = realm or f"http://{front.host}/token"
        challenge = f'Bearer realm="{where}",service="test, really",scope="{scope}"'
        return Answer(401, {"WWW-Authenticate": challenge}, b'{"errors": [{"code": "UNAUTHORIZED"}]}')

    front.stand = stand


def digest_of(layout: Path) -> str:
    found = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    assert isinstance(found, str)
    return found


def spoil(only: str, change: Callable[[Answer], None], times: int = 10_000) -> Callable[[Request, Answer], None]:
    """A fault of the first `times` answers whose path contains `only`."""
    seen: list[str] = []

    def fault(request: Request, answer: Answer) -> None:
        if only in request.path and len(seen) < times:
            seen.append(request.path)
            change(answer)

    return fault


def replaced(status: int, headers: Optional[dict[str, str]] = None, body: bytes = b"") -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        answer.status, answer.headers, answer.body = status, headers or {}, body

    return change

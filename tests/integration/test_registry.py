"""A real registry on loopback: as it is, with logins, and behind a front that lets it misbehave."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Optional
from urllib.parse import parse_qs, urlsplit

import pytest

from ctrain_builder.registry.resolver import DigestResolver
from ctrain_runtime.errors import RegistryError
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from samples import registry as samples
from samples.registry import BASIC, PASSWORD, USER, Answer, Front, Request, demand_token, front, oci_layout, serve

TAGS = ["22.03-py3", "24.12-py3", "25.01-py3", "25.04-py3", "26.08-py3"]
NAME = "nvidia/pytorch"


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    oci_layout(folder / "one", env=["CUDA_VERSION=12.6.3.004"], labels={"com.nvidia.pytorch.version": "2.6.0a0"})
    oci_layout(folder / "two", {"etc/hello": b"other\n"})
    oci_layout(folder / "index", arches=["amd64", "arm64"])
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, layouts: Path) -> Iterator[samples.Registry]:
    """A registry that everybody may read, with images."""
    if not (shutil.which("docker-registry") and shutil.which("skopeo")):
        if os.environ.get("CI"):
            pytest.fail("CI must have docker-registry and skopeo: see tests/cluster/install")
        pytest.skip("no docker-registry or skopeo here: tests/cluster/install brings them")
    with serve(tmp_path_factory.mktemp("registry")) as registry:
        for tag in TAGS:
            registry.push(layouts / "one", f"{NAME}:{tag}")
        registry.push(layouts / "index", "multi:1")
        yield registry


@pytest.fixture
def before(real: samples.Registry) -> Iterator[Front]:
    """A front before that registry."""
    with front(real) as made:
        yield made


@pytest.fixture
def waits() -> list[float]:
    """The seconds that `client` has waited, or would have."""
    return []


@pytest.fixture
def client(waits: list[float]) -> RegistryClient:
    """A client without any login, that does not really wait."""
    return RegistryClient({}, timeout=20, pause=waits.append)


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


# --- as it is ---


def test_a_tag_is_resolved_to_the_digest_that_was_pushed(
    real: samples.Registry, client: RegistryClient, layouts: Path
) -> None:
    digest = client.digest(f"{real.host}/{NAME}:24.12-py3")
    assert digest == digest_of(layouts / "one")
    assert client.digest(f"docker://{real.host}/{NAME}:24.12-py3@{digest}") == digest


def test_a_tag_for_several_architectures_has_the_digest_of_its_index(
    real: samples.Registry, client: RegistryClient, layouts: Path
) -> None:
    assert client.digest(f"{real.host}/multi:1") == digest_of(layouts / "index")
    assert "ARCH=arm64" in client.config(f"{real.host}/multi:1", "arm64")["Env"]
    assert "ARCH=amd64" in client.config(f"{real.host}/multi:1")["Env"]
    with pytest.raises(
        RegistryError, match=r"multi:1 has no image for linux/ppc64le\. It has linux/amd64, linux/arm64$"
    ):
        client.config(f"{real.host}/multi:1", "ppc64le")


def test_what_an_image_takes_to_download(real: samples.Registry, client: RegistryClient, layouts: Path) -> None:
    blobs = layouts / "index" / "blobs" / "sha256"
    index = json.loads((blobs / digest_of(layouts / "index").partition(":")[2]).read_text())
    for part in index["manifests"]:
        manifest = json.loads((blobs / part["digest"].partition(":")[2]).read_text())
        stored = sum((blobs / layer["digest"].partition(":")[2]).stat().st_size for layer in manifest["layers"])
        assert client.size(f"{real.host}/multi:1", part["platform"]["architecture"]) == stored > 0


def test_what_an_image_says_of_itself(real: samples.Registry, client: RegistryClient) -> None:
    config = client.config(f"{real.host}/{NAME}:24.12-py3")
    assert "CUDA_VERSION=12.6.3.004" in config["Env"]
    assert config["Labels"] == {"com.nvidia.pytorch.version": "2.6.0a0"}


def in_pages(request: Request, answer: Answer) -> None:
    """Send tags page by page, as the specification has it and nvcr.io does; Debian's registry sends all at once."""
    if "/tags/list" in request.path:
        query = parse_qs(urlsplit(request.path).query)
        size, last = int(query["n"][0]), query.get("last", [""])[0]
        left = [tag for tag in sorted(json.loads(answer.body)["tags"]) if tag > last]
        answer.body = json.dumps({"tags": left[:size]}).encode()
        if left[size:]:
            answer.headers["Link"] = f'</v2/{NAME}/tags/list?n={size}&last={left[size - 1]}>; rel="next"'


@pytest.mark.parametrize(("page", "requests"), [(1000, 1), (5, 1), (2, 3)])
def test_all_tags_are_found_page_by_page(before: Front, page: int, requests: int) -> None:
    before.fault = in_pages
    assert list(RegistryClient({}, page=page).tags(f"{before.host}/{NAME}")) == TAGS
    assert len(before.asked("/tags/list")) == requests


def test_pages_that_lead_in_circles_end(before: Front, client: RegistryClient) -> None:
    before.fault = spoil("tags", lambda answer: answer.headers.update(Link=f'</v2/{NAME}/tags/list?n=9>; rel="next"'))
    assert sorted(client.tags(f"{before.host}/{NAME}")) == TAGS
    assert len(before.asked("/tags/list")) == 2


def test_an_unknown_tag_and_the_near_ones(real: samples.Registry, client: RegistryClient) -> None:
    with pytest.raises(RegistryError) as caught:
        client.digest(f"{real.host}/{NAME}:24.13-py3")
    assert caught.value.message == f"{real.host}/{NAME} has no tag 24.13-py3"
    assert caught.value.hint.startswith("It has 24.12-py3, ")


def test_an_unknown_repository_and_an_unknown_digest(real: samples.Registry, client: RegistryClient) -> None:
    with pytest.raises(RegistryError, match=rf"^{real.host} has no repository nvidia/pytorhc\."):
        client.digest(f"{real.host}/nvidia/pytorhc:24.12-py3")
    with pytest.raises(RegistryError, match=rf"^{real.host} has no image sha256:0{{64}} in {NAME}\."):
        client.digest(f"{real.host}/{NAME}@sha256:{'0' * 64}")


def test_the_engine_builds_from_the_digest_even_when_the_tag_has_moved(
    tmp_path: Path, real: samples.Registry, client: RegistryClient, layouts: Path
) -> None:
    real.push(layouts / "one", "moving:1")
    digest = client.digest(f"{real.host}/moving:1")
    real.push(layouts / "two", "moving:1")
    assert client.digest(f"{real.host}/moving:1") == digest_of(layouts / "two") != digest
    environment = {**os.environ, "APPTAINER_CACHEDIR": str(tmp_path / "cache"), "APPTAINER_TMPDIR": str(tmp_path)}
    argv = ["apptainer", "build", "--fakeroot", "--sandbox", "box", f"docker://{real.host}/moving@{digest}"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "box/etc/hello").read_text() == "hello\n"


# --- logins ---


@pytest.fixture(scope="module")
def locked(
    tmp_path_factory: pytest.TempPathFactory, layouts: Path, real: samples.Registry
) -> Iterator[samples.Registry]:
    """A registry that asks for a name and a password."""
    assert real  # is there, or was skipped
    with serve(tmp_path_factory.mktemp("locked"), password=True) as registry:
        registry.push(layouts / "one", "private/image:1")
        yield registry


def test_without_a_login_it_says_how_to_log_in(locked: samples.Registry, client: RegistryClient) -> None:
    with pytest.raises(RegistryError) as caught:
        client.digest(f"{locked.host}/private/image:1")
    assert caught.value.message == f"{locked.host} denies read access to private/image"
    assert caught.value.hint == f"Log in with: apptainer registry login --username NAME docker://{locked.host}"


def test_the_login_that_the_engine_has_stored(tmp_path: Path, locked: samples.Registry, layouts: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    argv = ["apptainer", "registry", "login", "--username", USER, "--password-stdin", f"docker://{locked.host}"]
    subprocess.run(argv, env=home, input=PASSWORD, text=True, check=True, capture_output=True)
    assert RegistryClient(home).digest(f"{locked.host}/private/image:1") == digest_of(layouts / "one")


def test_a_wrong_password_is_refused_and_not_shown(locked: samples.Registry) -> None:
    wrong = {"APPTAINER_DOCKER_USERNAME": USER, "APPTAINER_DOCKER_PASSWORD": "tell nobody"}
    with pytest.raises(RegistryError, match="denies read access") as caught:
        RegistryClient(wrong).digest(f"{locked.host}/private/image:1")
    assert "nobody" not in repr(caught.value)


LOGIN = {"APPTAINER_DOCKER_USERNAME": USER, "APPTAINER_DOCKER_PASSWORD": PASSWORD}


@pytest.mark.parametrize(("password", "environ"), [(False, {}), (True, LOGIN)], ids=["anonymous", "login"])
def test_tokens(before: Front, layouts: Path, password: bool, environ: dict[str, str]) -> None:
    demand_token(before, password=password)
    client = RegistryClient(environ)
    assert client.digest(f"{before.host}/{NAME}:24.12-py3") == digest_of(layouts / "one")
    assert client.tags(f"{before.host}/{NAME}")
    assert client.config(f"{before.host}/{NAME}:24.12-py3")
    (asked,) = before.asked("/token")  # one for the whole repository
    assert asked.path == "/token?service=test%2C+really&scope=repository%3Anvidia%2Fpytorch%3Apull"
    # The password goes where tokens are made, and nowhere else.
    assert [request.path for request in before.requests if request.headers.get("authorization") == BASIC] == (
        [asked.path] if password else []
    )
    client.digest(f"{before.host}/multi:1")
    assert len(before.asked("/token")) == 2


def test_a_token_without_rights_is_no_login(before: Front, client: RegistryClient) -> None:
    demand_token(before, password=True)
    with pytest.raises(RegistryError, match="denies read access"):
        client.digest(f"{before.host}/{NAME}:24.12-py3")


def test_a_token_that_has_run_out_is_renewed(before: Front) -> None:
    demand_token(before)
    client = RegistryClient(LOGIN)
    client.tags(f"{before.host}/{NAME}")
    usual, refused = before.stand, Answer(401, {"WWW-Authenticate": f'Bearer realm="http://{before.host}/token"'}, b"")
    expired = [True]
    before.stand = lambda request: refused if "/v2/" in request.path and expired and expired.pop() else usual(request)
    assert sorted(client.tags(f"{before.host}/{NAME}")) == TAGS
    assert len(before.asked("/token")) == 2


def test_a_token_service_that_is_not_private_gets_no_password(before: Front) -> None:
    demand_token(before, realm="http://auth.example.com/token")
    with pytest.raises(RegistryError, match=r"^http://auth\.example\.com is not reached by https"):
        RegistryClient(LOGIN).digest(f"{before.host}/{NAME}:24.12-py3")


def test_another_host_to_which_we_are_sent_gets_no_login(real: samples.Registry, before: Front) -> None:
    demand_token(before)
    with front(real) as storage:
        before.fault = lambda request, answer: (
            replaced(307, {"Location": f"http://{storage.host}{request.path}"})(answer)
            if "/blobs/" in request.path
            else None
        )
        assert "CUDA_VERSION=12.6.3.004" in RegistryClient(LOGIN).config(f"{before.host}/{NAME}:24.12-py3")["Env"]
        (asked,) = storage.requests
        assert "authorization" not in asked.headers
        assert "authorization" in before.asked("/blobs/")[0].headers
        # And when it asks for one itself, it gets none either.
        demand_token(storage)
        with pytest.raises(RegistryError, match="denies read access"):
            RegistryClient(LOGIN).config(f"{before.host}/{NAME}:24.12-py3")
        assert not storage.asked("/token")


@pytest.mark.parametrize(
    ("location", "complaint"),
    [
        ("http://storage.example.com/blob", r"^http://storage\.example\.com is not reached by https"),
        ("file:///etc/passwd", r"^file:// is not reached by https"),
        ("/v2/again", r"^[\d.:]+ redirects without end"),
    ],
)
def test_where_we_are_not_sent(before: Front, client: RegistryClient, location: str, complaint: str) -> None:
    before.fault = spoil("", replaced(302, {"Location": location}))
    with pytest.raises(RegistryError, match=complaint):
        client.digest(f"{before.host}/{NAME}:24.12-py3")


# --- https ---


def test_https_by_the_certificates_that_this_machine_trusts(
    tmp_path: Path, real: samples.Registry, layouts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert real  # is there, or was skipped
    certificate, name = tmp_path / "registry.pem", "registry.example"
    files = ["-out", str(certificate), "-keyout", str(tmp_path / "registry.key")]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-days", "2"]
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files]
    subprocess.run(argv, check=True, capture_output=True)
    find = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest: find("127.0.0.1" if host == name else host, *rest))
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with serve(tmp_path / "registry", certificate=certificate) as registry:
        registry.push(layouts / "one", "hello:1")
        reference = f"{name}:{registry.host.rpartition(':')[2]}/hello:1"
        with pytest.raises(
            Unreachable, match=r"its certificate is not trusted \(self.signed certificate\)\. Name a file"
        ):
            RegistryClient({}).digest(reference)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert RegistryClient({}).digest(reference) == digest_of(layouts / "one")


# --- trouble ---


def test_a_few_failures_are_overcome(before: Front, client: RegistryClient, waits: list[float], layouts: Path) -> None:
    before.fault = spoil("/manifests/", replaced(500), times=2)
    assert client.digest(f"{before.host}/{NAME}:24.12-py3") == digest_of(layouts / "one")
    assert len(waits) == 2
    assert 0.25 <= waits[0] <= 0.75
    assert 0.5 <= waits[1] <= 1.5


def test_a_connection_that_drops_in_the_middle(
    before: Front, client: RegistryClient, waits: list[float], layouts: Path
) -> None:
    def drop(answer: Answer) -> None:
        answer.cut = True

    before.fault = spoil("/manifests/", drop, times=3)
    assert client.digest(f"{before.host}/{NAME}:24.12-py3") == digest_of(layouts / "one")
    before.fault = spoil("/manifests/", drop)
    with pytest.raises(Unreachable, match=rf"^{before.host} cannot be reached: the connection was cut\."):
        client.digest(f"{before.host}/{NAME}:24.12-py3")
    assert len(waits) == 6


def test_a_registry_that_always_fails(before: Front, client: RegistryClient, waits: list[float]) -> None:
    before.fault = spoil("/manifests/", replaced(503))
    with pytest.raises(Unreachable, match=rf"^{before.host} answers 503 Service Unavailable\. Retry later"):
        client.digest(f"{before.host}/{NAME}:24.12-py3")
    assert len(before.asked("/manifests/")) == 4
    assert len(waits) == 3


def test_a_registry_that_asks_for_patience_gets_some(before: Front, client: RegistryClient, waits: list[float]) -> None:
    before.fault = spoil("/manifests/", replaced(429, {"Retry-After": "7"}), times=1)
    client.digest(f"{before.host}/{NAME}:24.12-py3")
    assert waits == [7]
    before.fault = spoil("/manifests/", replaced(429, {"Retry-After": "3600"}))
    with pytest.raises(Unreachable, match="answers 429 Too Many Requests"):
        client.digest(f"{before.host}/{NAME}:24.12-py3")
    assert waits == [7]


@pytest.mark.parametrize(("chunk", "pause"), [(None, 2.0), (1, 0.05)], ids=["late", "trickling"])
def test_a_registry_that_is_slow(before: Front, waits: list[float], chunk: Optional[int], pause: float) -> None:
    def delay(answer: Answer) -> None:
        answer.chunk, answer.pause = chunk, pause

    before.fault = spoil("/manifests/", delay)
    client = RegistryClient({}, timeout=0.5, pause=waits.append)
    with pytest.raises(Unreachable, match=r"cannot be reached: no whole answer within 0\.5 s"):
        client.digest(f"{before.host}/{NAME}:24.12-py3")
    assert waits == []  # it has been waited for already


def test_a_registry_that_lies_about_a_digest(before: Front, client: RegistryClient, layouts: Path) -> None:
    other, truth = digest_of(layouts / "two"), digest_of(layouts / "one")
    before.fault = spoil("/manifests/", lambda answer: answer.headers.update({"Docker-Content-Digest": other}))
    with pytest.raises(RegistryError) as caught:
        client.digest(f"{before.host}/{NAME}:24.12-py3")
    told = f"digest mismatch from {before.host} for {before.host}/{NAME}:24.12-py3: announced {other}, received {truth}"
    assert caught.value.message == told
    assert not isinstance(caught.value, Unreachable)  # no reason to use what is remembered


@pytest.mark.parametrize("path", ["/manifests/", "/blobs/"])
def test_content_that_was_changed_on_the_way(before: Front, client: RegistryClient, path: str) -> None:
    def change(answer: Answer) -> None:
        answer.body = answer.body.replace(b"sha256:", b"sha256:\x20").replace(b"12.6.3", b"12.6.4")

    before.fault = spoil(path, change)
    with pytest.raises(RegistryError, match="digest mismatch"):
        client.config(f"{before.host}/{NAME}:24.12-py3")


def test_a_digest_that_brings_something_else(before: Front, client: RegistryClient, layouts: Path) -> None:
    asked, other = digest_of(layouts / "one"), digest_of(layouts / "two")
    body = (layouts / "two/blobs/sha256" / other.partition(":")[2]).read_bytes()
    before.fault = spoil("/manifests/", replaced(200, {"Docker-Content-Digest": other}, body))
    with pytest.raises(RegistryError, match=f"announced {asked}, received {other}"):
        client.digest(f"{before.host}/{NAME}@{asked}")


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"[]", b""])
def test_a_page_that_is_no_registry(before: Front, client: RegistryClient, body: bytes) -> None:
    before.fault = spoil("", replaced(200, {}, body))
    with pytest.raises(RegistryError, match=rf"^{before.host} did not return a registry response"):
        client.digest(f"{before.host}/{NAME}:24.12-py3")


def test_an_answer_without_end(before: Front, client: RegistryClient) -> None:
    before.fault = spoil("", replaced(200, {}, b" " * 17_000_000))
    with pytest.raises(RegistryError, match="sends more than 16 MB"):
        client.digest(f"{before.host}/{NAME}:24.12-py3")


# --- memory ---


def test_a_registry_that_is_gone_stops_no_build(tmp_path: Path, real: samples.Registry, layouts: Path) -> None:
    with front(real) as gone:
        reference = f"{gone.host}/{NAME}:24.12-py3"
        assert DigestResolver(tmp_path).resolve(reference) == digest_of(layouts / "one")
    later = DigestResolver(tmp_path, registry=RegistryClient({}, pause=lambda _: None))
    assert later.resolve(reference) == digest_of(layouts / "one")
    assert [error.message for error in later.troubles.values()] == [
        f"{gone.host} cannot be reached: Connection refused"
    ]
    with pytest.raises(Unreachable, match="Connection refused"):
        later.resolve(f"{gone.host}/{NAME}:25.01-py3")


def test_a_tag_that_moves_is_seen_by_the_next_builder(tmp_path: Path, real: samples.Registry, layouts: Path) -> None:
    real.push(layouts / "one", "moved:1")
    reference = f"{real.host}/moved:1"
    first = DigestResolver(tmp_path)
    assert first.resolve(reference) == digest_of(layouts / "one")
    real.push(layouts / "two", "moved:1")
    assert first.resolve(reference) == digest_of(layouts / "one")  # one plan sees one state
    assert DigestResolver(tmp_path, offline=True).resolve(reference) == digest_of(layouts / "one")
    assert DigestResolver(tmp_path).resolve(reference) == digest_of(layouts / "two")
    assert DigestResolver(tmp_path, offline=True).resolve(reference) == digest_of(layouts / "two")

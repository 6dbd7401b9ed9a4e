"""A real registry with logins and certificates."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.errors import RegistryError
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from samples import registry as samples
from samples.registry import (
    BASIC,
    NAME,
    PASSWORD,
    TAGS,
    USER,
    Answer,
    Front,
    Request,
    demand_token,
    digest_of,
    front,
    replaced,
    serve,
    spoil,
)


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


@pytest.mark.parametrize(("password", "environ"), [(False, {}), (True, LOGIN)], ids=["anonymous", "login"])
def test_with_a_token_that_has_run_out_another_service_is_named(
    before: Front, layouts: Path, password: bool, environ: dict[str, str]
) -> None:
    """As nvcr.io does: it names authn.nvidia.com, which is not for anonymous clients. Only without a token it names the
    service that is."""
    demand_token(before, password=password)
    client = RegistryClient(environ)
    reference = f"{before.host}/{NAME}:24.12-py3"
    assert client.digest(reference) == digest_of(layouts / "one")
    with front() as elsewhere:
        elsewhere.stand = lambda _: Answer(401, {}, b"")
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{elsewhere.host}/token",scope="repository:x:pull"'}
        usual, expired = before.stand, [request.headers.get("authorization") for request in before.asked("/v2/")][-1]
        assert expired
        until = len(before.asked("/token"))

        def stand(request: Request) -> Optional[Answer]:
            is_old = request.headers.get("authorization") == expired and len(before.asked("/token")) == until
            return Answer(401, challenge, b"") if is_old else usual(request)

        before.stand = stand
        assert client.digest(reference) == digest_of(layouts / "one")
        assert not elsewhere.requests  # nothing of ours goes there
    assert [request.headers.get("authorization") for request in before.asked("/v2/")][-3:] == [expired, None, expired]
    assert len(before.asked("/token")) == 2


def test_a_registry_that_needs_no_token_any_more(before: Front, layouts: Path) -> None:
    demand_token(before)
    client = RegistryClient(LOGIN)
    client.tags(f"{before.host}/{NAME}")
    refused = Answer(401, {"WWW-Authenticate": f'Bearer realm="http://{before.host}/token"'}, b"")
    before.stand = lambda request: refused if request.headers.get("authorization") else None
    assert client.digest(f"{before.host}/{NAME}:24.12-py3") == digest_of(layouts / "one")
    assert client.tags(f"{before.host}/{NAME}")
    assert len(before.asked("/token")) == 1


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

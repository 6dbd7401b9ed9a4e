"""What needs no registry; the rest is in tests/integration/registry/, with a real one."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import pytest

from ctrain_runtime.errors import ConfigError, RegistryError
from ctrain_runtime.registry import client
from ctrain_runtime.registry.client import Reference, RegistryClient
from samples.registry import PASSWORD, USER, Answer, Front, Request, front

SHA = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nvcr.io/nvidia/pytorch:24.12-py3", ("nvcr.io", "nvidia/pytorch", "24.12-py3", "")),
        ("docker://nvcr.io/nvidia/pytorch", ("nvcr.io", "nvidia/pytorch", "latest", "")),
        (f"nvcr.io/nvidia/pytorch:24.12-py3@{SHA}", ("nvcr.io", "nvidia/pytorch", "24.12-py3", SHA)),
        ("debian", ("docker.io", "library/debian", "latest", "")),
        ("pytorch/pytorch:2.5.0", ("docker.io", "pytorch/pytorch", "2.5.0", "")),
        ("docker.io/debian:12", ("docker.io", "library/debian", "12", "")),
        ("localhost/x:1", ("localhost", "x", "1", "")),
        ("localhost:5000/x", ("localhost:5000", "x", "latest", "")),
        ("registry:5000/a/b__c/d-e.f:1", ("registry:5000", "a/b__c/d-e.f", "1", "")),
        ("127.0.0.1:5000/x:1", ("127.0.0.1:5000", "x", "1", "")),
        ("[::1]:5000/x:1", ("[::1]:5000", "x", "1", "")),
    ],
)
def test_references(text: str, expected: tuple[str, str, str, str]) -> None:
    assert client.parse(text) == Reference(*expected)


@pytest.mark.parametrize(
    "text",
    ["", "nvcr.io/", "nvcr.io/Nvidia/pytorch", "x:", "x@sha256:12", "x:a b", "https://nvcr.io/x", "nvcr.io/../x", "x\n",
     "nvcr.io/x?y=1", "user@nvcr.io/x", "nvcr.io:x/y", "-x", f"x@{SHA}0", "x:1:2", "ñ/x"],
)  # fmt: skip  # rows, as they are read
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a reference to an image of a registry") as caught:
        client.parse(text)
    assert caught.value.hint == "Write it as HOST/NAME:TAG"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("nvcr.io/nvidia/pytorch", "https://nvcr.io/v2/nvidia/pytorch"),
        ("debian:12", "https://registry-1.docker.io/v2/library/debian"),
        ("localhost:5000/x", "http://localhost:5000/v2/x"),
        ("127.8.9.1:5000/x", "http://127.8.9.1:5000/v2/x"),
        ("[::1]:5000/x", "http://[::1]:5000/v2/x"),
        ("10.0.0.1:5000/x", "https://10.0.0.1:5000/v2/x"),
        ("localhost.evil.org/x", "https://localhost.evil.org/v2/x"),
        ("127.0.0.1.evil.org/x", "https://127.0.0.1.evil.org/v2/x"),
    ],
)
def test_only_this_machine_is_spoken_to_in_the_open(text: str, url: str) -> None:
    assert client.parse(text).api == url


def in_memory(front: Front, challenge: str) -> None:
    """A registry that wants the token "yes" for everything and has only a list of tags."""

    def stand(request: Request) -> Answer:
        if request.path.startswith("/token"):
            return Answer(200, {}, json.dumps({"access_token": "yes"}).encode())
        if request.headers.get("authorization") != "Bearer yes":
            return Answer(401, {"WWW-Authenticate": challenge.format(host=front.host)}, b"")
        return Answer(200, {}, b'{"tags": ["1"]}')

    front.stand = stand


@pytest.mark.parametrize(
    ("challenge", "query"),
    [
        ('Bearer realm="http://{host}/token",service="s, t"', "service=s%2C+t&"),
        ('bearer Realm="x", realm = "http://{host}/token" , service=s', "service=s&"),
        ('Basic realm="login", Bearer realm="http://{host}/token",scope="repository:x:pull,push"', ""),
        ('Bearer realm="http://{host}/token",service=""', ""),
        ('Bearer realm="http://{host}/token?account=me",service="s"', "account=me&service=s&"),
    ],
)
def test_challenges(challenge: str, query: str) -> None:
    with front() as made:
        in_memory(made, challenge)
        login = {"APPTAINER_DOCKER_USERNAME": USER, "APPTAINER_DOCKER_PASSWORD": PASSWORD}
        assert RegistryClient(login).tags(f"{made.host}/x") == ("1",)
        # Never more rights than to pull.
        assert [request.path for request in made.asked("/token")] == [f"/token?{query}scope=repository%3Ax%3Apull"]


def test_a_token_that_has_run_out_is_not_shown_to_ask_for_another() -> None:
    """nvcr.io names another service to whom still shows it, which is not for anonymous clients."""
    with front() as made, front() as elsewhere:
        valid, issued = ["Bearer 0"], itertools.count()

        def stand(request: Request) -> Answer:
            if request.path.startswith("/token"):
                return Answer(200, {}, json.dumps({"token": str(next(issued))}).encode())
            shown = request.headers.get("authorization")
            realm = f"http://{elsewhere.host if shown else made.host}/token"
            ours = Answer(200, {}, b'{"tags": ["1"]}')
            return ours if shown in valid else Answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}"'}, b"")

        made.stand = stand
        client = RegistryClient({})
        assert client.tags(f"{made.host}/x") == ("1",)
        valid[:] = ["Bearer 1"]
        assert client.tags(f"{made.host}/x") == ("1",)
        shown = [request.headers.get("authorization") for request in made.asked("/v2/")]
        assert shown == [None, "Bearer 0", "Bearer 0", None, "Bearer 1"]
        assert elsewhere.requests == []


@pytest.mark.parametrize("challenge", ["", "Digest realm=x", "Basic realm=x"])
def test_challenges_that_cannot_be_met(challenge: str) -> None:
    with front() as made:
        in_memory(made, challenge)
        with pytest.raises(RegistryError, match="denies read access"):
            RegistryClient({}).tags(f"{made.host}/x")


@pytest.mark.parametrize(
    "challenge", ["Bearer service=s", 'Bearer realm=""', 'Bearer realm="/token"', "Bearer realm=file:/t"]
)
def test_a_challenge_without_an_address(challenge: str) -> None:
    with front() as made:
        in_memory(made, challenge)
        with pytest.raises(RegistryError, match=rf"^{made.host} names no address where tokens are to be had\. "):
            RegistryClient({}).tags(f"{made.host}/x")
        assert made.asked("/token") == []


@pytest.mark.parametrize(
    "answer", [{}, {"token": None}, {"token": 5}, {"token": ["t"]}, {"token": "a\r\nX: y"}, {"token": "é"}]
)
def test_a_token_service_that_sends_none(answer: object) -> None:
    """It was asked with "None", and the registry seemed to deny access."""
    with front() as made, front() as auth:
        in_memory(made, f'Bearer realm="http://{auth.host}/token"')
        auth.stand = lambda _: Answer(200, {}, json.dumps(answer).encode())
        with pytest.raises(RegistryError, match=rf"^{auth.host} did not return a token for {made.host}\. "):
            RegistryClient({}).tags(f"{made.host}/x")
        assert len(made.requests) == 1


def test_an_identity_token_is_exchanged(tmp_path: Path) -> None:
    with front() as made:
        in_memory(made, 'Bearer realm="http://{host}/token",service=s')
        (tmp_path / "config.json").write_text(json.dumps({"auths": {made.host: {"identitytoken": "i+d"}}}))
        assert RegistryClient({"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}).tags(f"{made.host}/x") == ("1",)
        (asked,) = made.asked("/token")
        assert (asked.method, asked.path) == ("POST", "/token")
        assert asked.body == (
            "grant_type=refresh_token&refresh_token=i%2Bd&client_id=ctrain&service=s&scope=repository%3Ax%3Apull"
        )
        assert "authorization" not in asked.headers


def test_an_identity_token_for_a_service_without_a_name(tmp_path: Path) -> None:
    with front() as made:
        in_memory(made, 'Bearer realm="http://{host}/token"')
        (tmp_path / "config.json").write_text(json.dumps({"auths": {made.host: {"identitytoken": "i+d"}}}))
        assert RegistryClient({"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}).tags(f"{made.host}/x") == ("1",)
        assert "service" not in made.asked("/token")[0].body


def test_a_token_service_that_fails_is_named() -> None:
    with front() as made, front() as auth:
        in_memory(made, f'Bearer realm="http://{auth.host}/token"')
        with pytest.raises(
            RegistryError, match=rf"^{auth.host} answers 404 Not Found when asked for {made.host}/x:latest$"
        ):
            RegistryClient({}).tags(f"{made.host}/x")


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ({"manifests": [{"digest": SHA}]}, r"has no image for linux/amd64\. It has none"),
        ({"manifests": ["x"]}, "has no image for linux/amd64"),
        (
            {"manifests": [{"digest": SHA, "platform": {"os": "windows", "architecture": "amd64"}}]},
            "It has windows/amd64",
        ),
        ({"manifests": [{"digest": "", "platform": {"os": "linux", "architecture": "amd64"}}]}, "is a damaged index"),
        ({"layers": []}, "is no image in the format of OCI or Docker 2"),
        ({"config": "x"}, "is no image in the format of OCI or Docker 2"),
    ],
)
def test_manifests_that_are_of_no_use(index: object, complaint: str) -> None:
    with front() as made:
        made.stand = lambda _: Answer(200, {}, json.dumps(index).encode())
        with pytest.raises(RegistryError, match=complaint):
            RegistryClient({}).config(f"{made.host}/x:1")


@pytest.mark.parametrize("layers", [{}, {"layers": 1}, {"layers": [1]}, {"layers": [{"size": "x"}]}])
def test_an_image_that_does_not_say_how_large_it_is(layers: dict[str, object]) -> None:
    with front() as made:
        made.stand = lambda _: Answer(200, {}, json.dumps({"config": {}, **layers}).encode())
        with pytest.raises(RegistryError, match="is a damaged index"):
            RegistryClient({}).size(f"{made.host}/x:1")


@pytest.mark.parametrize("config", [{"config": "x"}, {"config": None}, {}])
def test_an_image_that_says_nothing_of_itself(config: object) -> None:
    with front() as made:
        body = json.dumps(config).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        manifest = json.dumps({"config": {"digest": digest}}).encode()
        made.stand = lambda request: Answer(200, {}, body if "/blobs/" in request.path else manifest)
        assert RegistryClient({}).config(f"{made.host}/x:1") == {}


@pytest.mark.parametrize("tags", [None, "abc", 5, {}])
def test_a_list_of_tags_that_is_none(tags: object) -> None:
    with front() as made:
        made.stand = lambda _: Answer(200, {}, json.dumps({"tags": tags}).encode())
        assert RegistryClient({}).tags(f"{made.host}/x") == ()


def test_further_tags_are_asked_for_where_the_first_were() -> None:
    """Or a link could take our login to another host."""
    with front() as made, front() as other:

        def stand(request: Request) -> Answer:
            if "last=" in request.path:
                return Answer(200, {}, b'{"tags": ["2"]}')
            link = f'<http://{other.host}/v2/x/tags/list?last=1&n=1>; rel="next"'
            return Answer(200, {"Link": link}, b'{"tags": ["1"]}')

        made.stand = stand
        assert RegistryClient({}).tags(f"{made.host}/x") == ("1", "2")
        assert other.requests == []


@pytest.mark.parametrize(
    "headers",
    [{"Link": '<http://[>; rel="next"'}, {"WWW-Authenticate": 'Bearer realm="http://["'}, {"Location": "http://["}],
)
def test_addresses_that_are_none(headers: dict[str, str]) -> None:
    status = {"Link": 200, "WWW-Authenticate": 401, "Location": 307}[next(iter(headers))]
    with front() as made:
        made.stand = lambda _: Answer(status, headers, b'{"tags": ["1"]}')
        with pytest.raises(RegistryError):
            RegistryClient({}).tags(f"{made.host}/x")

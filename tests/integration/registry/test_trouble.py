"""A real registry behind a front that lets it misbehave."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from ctrain_runtime.errors import RegistryError
from ctrain_runtime.registry.client import RegistryClient
from ctrain_runtime.registry.http_client import Unreachable
from samples.registry import NAME, Answer, Front, digest_of, replaced, spoil


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

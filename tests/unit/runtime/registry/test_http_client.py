from __future__ import annotations

import functools
from pathlib import Path

import pytest

from ctrain_runtime.errors import RegistryError
from ctrain_runtime.registry.http_client import HttpClient, Request, Unreachable, host, is_this_machine, origin
from samples.registry import Answer, front


def test_a_login_of_netrc_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with front() as made:
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine {made.host.partition(':')[0]} login kim password sesame\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("NETRC", str(netrc))
        made.stand = lambda _: Answer(200, {}, b"{}")
        HttpClient(5, lambda _: None).fetch(f"http://{made.host}/", {"Authorization": ""})
        HttpClient(5, lambda _: None).fetch(f"http://{made.host}/", {"Authorization": "Bearer x"})
        assert [request.headers.get("authorization") for request in made.requests] == [None, "Bearer x"]


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with front() as made:
        made.stand = lambda _: Answer(200, {}, b"{}")
        assert HttpClient(5, lambda _: None).fetch(f"http://{made.host}/", {}).data() == {}


def test_a_proxy_is_asked_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with front() as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy.host}")
        monkeypatch.delenv("no_proxy", raising=False)
        proxy.stand = lambda _: Answer(403, {}, b"")
        said = r"^registry\.example cannot be reached: Tunnel connection failed: 403 Forbidden\. Check the network and"
        with pytest.raises(Unreachable, match=said):
            HttpClient(5, lambda _: None).fetch("https://registry.example/v2/", {})
        assert [(request.method, request.path) for request in proxy.requests][:1] == [
            ("CONNECT", "registry.example:443")
        ]


def test_an_unknown_host_is_not_asked_again() -> None:
    waits: list[float] = []
    with pytest.raises(Unreachable, match=r"^no-such-host\.invalid cannot be reached: .+\. Check the network"):
        HttpClient(5, waits.append).fetch("https://no-such-host.invalid/", {})
    assert waits == []


def test_a_form_is_not_sent_on() -> None:
    with front() as made, front() as other:
        made.stand = lambda _: Answer(307, {"Location": f"http://{other.host}/"}, b"")
        assert (
            HttpClient(5, lambda _: None).fetch(f"http://{made.host}/", {}, Request("POST", b"secret=x")).status == 307
        )
        assert other.requests == []


def test_the_body_of_a_redirect_is_not_awaited() -> None:
    with front() as made:
        there = Answer(302, {"Location": "/there"}, b"never whole", silence=60)
        made.stand = lambda request: Answer(200, {}, b"{}") if request.path == "/there" else there
        assert HttpClient(5, lambda _: None).fetch(f"http://{made.host}/", {}).data() == {}


def test_a_header_that_is_not_one_is_not_shown() -> None:
    with pytest.raises(Unreachable, match="cannot be reached: the address is not valid") as caught:
        HttpClient(5, lambda _: None).fetch("http://localhost/", {"Authorization": "Bearer se\ncret"})
    assert "cret" not in str(caught.value)


def test_lists_in_lists_without_end_are_no_answer() -> None:
    with front() as made:
        made.stand = lambda _: Answer(200, {}, b"[" * 200_000)
        with pytest.raises(RegistryError, match="did not return a registry response"):
            HttpClient(5, lambda _: None).fetch(f"http://{made.host}/", {}).data()


def test_wishes_that_are_no_sensible_number() -> None:
    waits: list[float] = []
    with front() as made:
        for wish in ("9" * 5000, "soon", "-1"):
            answer = Answer(429, {"Retry-After": wish}, b"")
            made.stand = functools.partial(lambda told, _: told, answer)
            with pytest.raises(Unreachable, match=r"answers 429 Too Many Requests\."):
                HttpClient(5, waits.append).fetch(f"http://{made.host}/", {})
    assert max(waits) < 10


def test_addresses() -> None:
    url = "https://kim:sesame@nvcr.io:443/v2/x?token=y"
    assert (host(url), origin(url)) == ("nvcr.io:443", "https://nvcr.io:443")
    assert [
        is_this_machine(where) for where in ("localhost:1", "127.1.2.3", "[::1]:1", "localhost.io", "10.0.0.1", "")
    ] == [
        *(True, True, True),
        *(False, False, False),
    ]


def test_half_an_answer_is_none() -> None:
    waits: list[float] = []
    with front() as made:
        made.stand = lambda _: Answer(200, {}, b'{"tags": []}      ', cut=True)
        with pytest.raises(Unreachable, match=r"cannot be reached: the connection was cut\. Check the network"):
            HttpClient(5, waits.append).fetch(f"http://{made.host}/", {})
    assert len(waits) == 3

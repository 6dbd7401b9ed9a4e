from __future__ import annotations

import pytest

from ctrain_builder.registry.artifacts import Download
from ctrain_runtime.registry.client import RegistryClient, parse
from ctrain_runtime.registry.http_client import Unreachable
from samples.registry import Answer, front

MIB = 1 << 20


def test_a_registry_that_falls_silent_is_asked_again_but_not_for_ever() -> None:
    waits: list[float] = []
    with front() as made:
        made.stand = lambda _: Answer(200, {}, bytes(4 * MIB), silence=2.0)
        download = Download(RegistryClient({}, timeout=0.3, pause=waits.append), parse(f"{made.host}/x:1"), "sha256:0")
        assert [len(download.read(4 * MIB, at)) for at in (0, MIB)] == [MIB, MIB]
        silent = (
            rf"^{made.host} stopped sending: no byte within 0\.3 s, after 2\.1 MB\. Check the network and https_proxy"
        )
        with pytest.raises(Unreachable, match=silent):
            download.read(4 * MIB, 2 * MIB)
        assert [one.headers.get("range") for one in made.requests[1:]] == [f"bytes={2 * MIB}-"] * 3
    assert len(waits) == 4

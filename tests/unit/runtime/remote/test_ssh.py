"""What of a connection needs no ssh; the rest: cli/test_on.py."""

from __future__ import annotations

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.remote.ssh import Connection


@pytest.mark.parametrize("host", ["neuron", "kim@login.example.org", "k-im.2@10.0.0.1", "kim@fe80::1%eth0"])
def test_hosts(host: str) -> None:
    assert Connection(host).host == host


@pytest.mark.parametrize(
    "host",
    ["", "-oProxyCommand=x", "a b", "a;b", "a@b@c", "kim@-x", "$(x)", "a\nb", "ssh://a", "login:22", "`x`", "a'b"],
)
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(UsageError, match=r"^not a login node: .* Write HOST or USER@HOST"):
        Connection(host)

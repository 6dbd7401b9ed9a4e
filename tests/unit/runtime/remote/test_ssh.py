"""What of a connection needs no ssh; the rest: cli/test_on.py."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from ctrain_runtime.base import command
from ctrain_runtime.errors import UsageError
from ctrain_runtime.remote import ssh
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


def test_a_signal_that_comes_before_ssh_has_started_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start = command.start

    def start_late(argv: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        return start(argv, **streams)

    monkeypatch.setattr(command, "start", start_late)
    assert ssh._run_piped(["timeout", "60", "sh", "-c", 'test "$(head -c 1)" = T']) == 0

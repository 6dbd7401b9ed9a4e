from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest

from ctrain_runtime.run import interrupts as module
from ctrain_runtime.run.interrupts import Interrupts


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_cancel(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        assert not interrupts.cancel
        send(number)
        interrupts.wait(30)
        assert (interrupts.cancel, interrupts.leave, interrupts.detach) == (True, False, False)


def test_the_same_ctrl_c_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal, a shell and a wrapper may each send it."""
    monkeypatch.setattr(module, "DEBOUNCE_SECONDS", 3600.0)
    with Interrupts() as interrupts:
        send(signal.SIGINT, signal.SIGINT, signal.SIGTERM)
        assert (interrupts.cancel, interrupts.leave) == (True, False)


def test_another_ctrl_c_later_asks_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEBOUNCE_SECONDS", -1.0)
    with Interrupts() as interrupts:
        send(signal.SIGINT, signal.SIGINT)
        assert (interrupts.cancel, interrupts.leave) == (True, True)


def test_a_closed_terminal_asks_to_detach() -> None:
    with Interrupts() as interrupts:
        send(signal.SIGHUP)
        assert (interrupts.cancel, interrupts.detach) == (False, True)


def test_a_signal_ends_a_wait() -> None:
    with Interrupts() as interrupts:
        threading.Timer(0.05, send, [signal.SIGINT]).start()
        before = time.monotonic()
        interrupts.wait(600)
        assert time.monotonic() - before < 600
        assert interrupts.cancel
        interrupts.wait(0.01)  # the signal is used up


def test_the_end_of_a_child_ends_a_wait_and_asks_for_nothing() -> None:
    with Interrupts() as interrupts:
        child = subprocess.Popen(["true"])
        before = time.monotonic()
        interrupts.wait(600)
        assert time.monotonic() - before < 600
        assert (interrupts.cancel, interrupts.leave, interrupts.detach) == (False, False, False)
        assert child.wait() == 0
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


def test_many_signals_do_not_block() -> None:
    with Interrupts() as interrupts:
        for _ in range(5):
            send(signal.SIGINT)
        interrupts.wait(0)
        assert interrupts.cancel


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_the_caller_has_switched_off_stays_off() -> None:
    """As nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            send(signal.SIGHUP)
            interrupts.wait(0)
            assert not interrupts.detach
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

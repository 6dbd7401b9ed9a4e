from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.home import expand_home


def test_only_a_leading_tilde_of_a_known_user_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/kim")
    assert expand_home("~") == Path("/home/kim")
    assert expand_home("~/x ~") == Path("/home/kim/x ~")
    assert expand_home("~nobody-here/x") == Path("~nobody-here/x")
    assert expand_home("a/~") == Path("a/~")

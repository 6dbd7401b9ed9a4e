from __future__ import annotations

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["help", "exit-codes"]) == 0
    lines = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()[1:]]
    codes = [int(code) for code, _ in lines]
    assert codes == sorted(set(codes))
    assert {64, 68, 72, 130} <= set(codes)
    assert all(meaning for _, meaning in lines)


def test_an_unknown_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUNTIME_VERBS, ["help", "me"]) == 64
    said = capsys.readouterr().err
    assert said.startswith("ctrain: argument topic: invalid choice: 'me'")
    assert said.count("\n") == 1

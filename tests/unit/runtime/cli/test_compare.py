from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.reports import a_subject, lines


def test_two_runs(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rate in (("one", 100.0), ("two", 200.0)):
        a_subject(tmp_path / "runs" / name, 0, metrics=lines(rate, rate), env={"NAME": name}, nodes=1)
    where = ("--site", "local", "--runs", "runs")
    assert main(RUNTIME_VERBS, ["compare", "one", "two", *where]) == 0
    results, settings = capsys.readouterr().out.rstrip().split("\n\n")
    assert "last images per second  100/s" in results
    assert settings.splitlines() == ["setting   one  two", "env NAME  one  two"]
    assert main(RUNTIME_VERBS, ["compare", "one", "one", *where]) == 64
    assert "one run alone cannot be compared" in capsys.readouterr().err

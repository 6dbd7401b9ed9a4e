"""`ctrain tensorboard` with a stand-in for the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from samples.reports import a_subject

SERVER = """\
#!/bin/sh
echo "$@" >{folder}/options
ls "$2" >{folder}/runs_seen
echo "port in use" >&2
exit {code}
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "two"):
        a_subject(tmp_path / "runs" / name, 0, metrics='{"step": 1, "loss": 2}\n')
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    return tmp_path / "runs"


def ctrain(runs: Path, *arguments: str, code: int = 0) -> int:
    program = runs.parent / "bin/tensorboard"
    program.write_text(SERVER.format(folder=runs.parent, code=code))
    program.chmod(0o755)
    return main(RUNTIME_VERBS, ["tensorboard", *arguments, "--site", "local", "--runs", str(runs)])


def test_the_server_gets_the_runs_and_the_user_the_lines(
    runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ctrain(runs, "one", "two", "--port", "6006") == 0
    out = capsys.readouterr().out
    assert "tunnel" not in out
    assert "\ncurves    http://127.0.0.1:6006/ " in out
    options = (runs.parent / "options").read_text().split()
    assert options[2:] == ["--host", "127.0.0.1", "--port", "6006"]
    assert not Path(options[1]).exists()
    assert (runs.parent / "runs_seen").read_text() == "one\ntwo\n"
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 50022 192.0.2.1 22")
    assert ctrain(runs, "one", "--port", "6006") == 0
    out = capsys.readouterr().out
    assert "\ntunnel    ssh -N -L 6006:127.0.0.1:6006 " in out
    assert "@192.0.2.1    (on your own machine)\n" in out


def test_what_goes_wrong(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ctrain(runs, "one", code=1) == 70
    assert "tensorboard ended with exit code 1: port in use" in capsys.readouterr().err
    assert ctrain(runs, "one", "--port", "0") == 64
    assert "--port must be between 1 and 65535, not 0" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert ctrain(runs, "one") == 70
    assert "tensorboard not found on PATH. Install it" in capsys.readouterr().err

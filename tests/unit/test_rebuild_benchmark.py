"""benchmarks/rebuild.py without its builds: what its options measure, and what of it is printed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from samples.benchmarks import BENCHMARKS, load

BUILT = """\
test    %test of train    passed 1.2 s
test    imports           passed (unchanged)
"""


@pytest.fixture
def rebuild(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The benchmark; each of its builds takes 2 s, and writes as much as `written` says for its image."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = load("rebuild")
    module.written = dict.fromkeys(("pytorch-cpu", "1000", "4000"), 1_000_000)

    def build(bench):  # type: ignore[no-untyped-def]  # its types are of the module
        (bench.folder / "last.log").write_text(BUILT)
        (bench.folder / "cache/layers").mkdir(parents=True, exist_ok=True)
        (bench.folder / "cache/layers/k.sif").touch()
        return module.Cost(2.0, module.written[bench.options[1] if bench.options else bench.image], 500)

    monkeypatch.setattr(module.Bench, "build", build)
    monkeypatch.setattr(module, "copy_cache", lambda _: None)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)  # else pytest would get its handler
    monkeypatch.chdir(tmp_path)
    return module


def run(rebuild: ModuleType, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rebuild.py", "--work", ".", "--json", *options])
    code = rebuild.main()
    assert list(Path().glob("ctrain-rebuild-*")) == []
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--code-change"], ["code_change"]),
        (["--growth", "4,1"], ["growth", "ratios", "limit"]),
        (["--growth", "4,1", "--code-change"], ["code_change", "growth", "ratios", "limit"]),
    ],
)
def test_each_option_is_measured(
    rebuild: ModuleType,
    options: list[str],
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(rebuild, monkeypatch, *options) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found) == keys
    if "code_change" in found:
        change = found["code_change"]
        assert (change["image"], change["seconds"], change["limit"]) == ("pytorch-cpu", 2.0, 10)
        assert (change["tests_run"], change["tests_unchanged"]) == (["%test of train"], 1)
    if "growth" in found:
        assert (len(found["growth"]), found["ratios"]) == (2, {"written": 1.0, "read": 1.0})


@pytest.mark.parametrize(("image", "limit", "code"), [("none", "10", 0), ("none", "1", 1), ("4000", "10", 1)])
def test_either_limit_decides(
    rebuild: ModuleType, image: str, limit: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuild.written[image] = 1_300_000
    assert run(rebuild, monkeypatch, "--code-change", "--growth", "1,4", "--limit", limit) == code


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--growth", "0,1"], "sizes must be above 0, and --rounds at least 1"),
        (["--growth", "1", "--rounds", "0"], "sizes must be above 0, and --rounds at least 1"),
        (["--growth", "one"], "argument --growth: invalid gigabytes value: 'one'"),
        (["--growth", ""], "argument --growth: invalid gigabytes value: ''"),
    ],
)
def test_wrong_sizes_are_refused(
    rebuild: ModuleType,
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as refused:
        run(rebuild, monkeypatch, *options)
    assert refused.value.code == 2
    assert f"rebuild.py: error: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "code"), [("sleep 1000", 0), ("true", 1)])
def test_what_runs_beside_must_not_end_before(
    rebuild: ModuleType, command: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        if command == "true":
            started[0].wait()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    assert run(rebuild, monkeypatch, "--code-change", "--beside", command) == code
    assert started[0].returncode == (-signal.SIGTERM if code == 0 else 0)

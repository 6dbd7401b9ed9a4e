from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.launchers.translate import translate_command
from ctrain_runtime.run.accelerate_config import notes
from ctrain_runtime.run.prepare import prepare
from samples.run_requests import asked, make_machine

LAUNCH = ("accelerate", "launch", "train.py")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def write_config(directory: Path) -> str:
    file = directory / "accelerate/default_config.yaml"
    file.parent.mkdir(parents=True)
    file.touch()
    return str(file)


def test_a_file_that_accelerate_would_read_is_named(
    home: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_machine(programs, home)
    Path("train.py").touch()
    file = write_config(home / ".cache/huggingface")
    note = f"{file} is not read. Pass what it sets as options of accelerate, as in --mixed_precision bf16"
    assert note in prepare(asked(command=LAUNCH, image="pytorch")).notes
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert notes(translate_command(LAUNCH)) == ()
    other = write_config(home / "hf")
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    assert notes(translate_command(("bash", "-c", "accelerate launch x.py"))) == (note.replace(file, other),)


@pytest.mark.parametrize(
    "command", [("python", "train.py"), ("accelerate", "launch", "--config_file", "f", "train.py")]
)
def test_another_command_reads_no_such_file(command: tuple[str, ...], home: Path) -> None:
    write_config(home / ".cache/huggingface")
    assert notes(translate_command(command)) == ()


def test_without_such_a_file_there_is_nothing_to_note() -> None:
    assert notes(translate_command(LAUNCH)) == ()

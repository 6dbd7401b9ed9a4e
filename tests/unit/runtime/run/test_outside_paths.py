from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.run import outside_paths
from samples.plans import a_job, a_plan


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a run, with files, a symlink out of it, and a path through a symlink, beside other data."""
    monkeypatch.setattr(outside_paths, "_OF_THE_IMAGE", {"usr", "dev"})  # the tests' own directory may be below /tmp
    for name in ("work/inside", "data/train", "scratch", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/x.py").touch()
    (tmp_path / "work/link").symlink_to(tmp_path / "data")
    (tmp_path / "work/python").symlink_to("/usr")
    (tmp_path / "home").symlink_to(tmp_path / "data")
    return tmp_path / "work"


def notes(work: Path, *command: str) -> tuple[str, ...]:
    job = a_job(command=command, workdir=str(work), directory=work)
    return outside_paths.notes(a_plan(job=job, mounts=(f"{work.parent}/scratch:/scratch:ro",)))


@pytest.mark.parametrize(
    ("word", "mount"),
    [
        ("../data", "data"),
        ("--data-dir={top}/data/train", "data/train"),
        ("{top}/data", "data"),
        ("link", "data"),
        ("link/train", "data/train"),
        ("path={top}/home/train", "data/train:{top}/home/train"),
        ("..", ""),
    ],
)
def test_a_path_that_the_program_cannot_see_is_named(word: str, mount: str, work: Path) -> None:
    top = work.parent
    word, option = word.format(top=top), f"{top}/{mount}".rstrip("/").format(top=top)
    shown = word.partition("=")[2] or word
    line = f"no mount shows {shown} to the program, unless the engine's configuration does: --mount {option}"
    assert notes(work, "python", "x.py", word, word) == (line,)


@pytest.mark.parametrize(
    "word",
    ["x.py", "inside", "./inside/../x.py", "/usr", "/", "../gone", "python", "--lr", "", "x" * 5000, "a\nb"],
)
def test_all_other_words_are_not(word: str, work: Path) -> None:
    assert notes(work, "python", "x.py", word) == ()

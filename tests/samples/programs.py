"""Fakes of the programs that ctrain calls, for tests that run without an engine, MPI or Slurm."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

BIN = Path(__file__).parent / "bin"
SYSTEM = "/usr/bin:/bin"  # bash, date, mktemp ...: what the scripts of a run use


def install(folder: Path, *names: str) -> None:
    """Copy the fakes `names` (apptainer, mpirun) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copy(BIN / name, folder / name)


def answer(folder: Path, name: str, said: str = "", *, error: str = "", code: int = 0, **by_word: str) -> Path:
    """A program that says `said`, or by_word[FIRST ARGUMENT without dashes]; returns the file that logs its calls."""
    folder.mkdir(parents=True, exist_ok=True)
    calls = folder / f"{name}.calls"
    cases = "".join(f"  --{word}) printf %s {shlex.quote(text)}; exit ;;\n" for word, text in by_word.items())
    script = f"""\
#!/bin/bash
printf '%s\\n' "$*" >>{shlex.quote(str(calls))}
case ${{1-}} in
{cases}esac
printf %s {shlex.quote(said)}
printf %s {shlex.quote(error)} >&2
exit {code}
"""
    write_program(folder / name, script)
    return calls


def write_program(path: Path, script: str) -> Path:
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path

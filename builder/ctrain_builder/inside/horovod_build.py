"""Checks that Horovod was built with exactly the features that are its arguments."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

# horovodrun forks itself for each feature, to import Horovod there: so torch is imported once instead of six times.
WITH_TORCH = "import runpy, sys, torch; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def main(features: list[str]) -> None:
    report = check_build("PyTorch" in features)
    print(report)
    built, wanted = set(re.findall(r"\[X\] (\S+)", report)), set(features)
    # Horovod 0.28.1 names PyTorch even where it was built for TensorFlow alone.
    if built - ({"PyTorch"} - wanted) != wanted:
        raise SystemExit(f"Horovod was built with {' '.join(sorted(built))}, not with {' '.join(sorted(wanted))}")


def check_build(torch: bool) -> str:
    program = shutil.which("horovodrun") or "horovodrun"  # the one on the image's PATH is what is tested
    start = [sys.executable, "-c", WITH_TORCH] if torch and is_of_this_python(program) else []
    return subprocess.run([*start, program, "--check-build"], stdout=subprocess.PIPE, text=True, check=True).stdout


def is_of_this_python(program: str) -> bool:
    with Path(program).open("rb") as file:
        words = file.readline().decode(errors="replace")[2:].split()
    return len(words) == 1 and _identity(words[0]) == _identity(sys.executable)


def _identity(python: str) -> tuple[Path, Path]:
    """Of python and python3 the same; of a virtual environment its own."""
    return Path(python).parent, Path(python).resolve()


if __name__ == "__main__":
    main(sys.argv[1:])

"""tests/parts, which `make test` runs: with a Makefile whose parts pass and fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "parts"
MAKEFILE = """\
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
good:
\t@sleep 0.5
\t@(for n in $$(seq 30); do echo "$$n.50s call     test_$$n"; done; echo "3 passed") | tee $(RESULTS)/good.log
later:
\t@echo "2 passed" | tee $(RESULTS)/later.log
bad:
\t@(echo "99.00s setup    test_bad"; echo "1 failed"; exit 1) | tee $(RESULTS)/bad.log
"""


def run(folder: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    (folder / "Makefile").write_text(MAKEFILE)
    return subprocess.run([PROGRAM, *parts], cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_part_that_fails_hides_no_other(tmp_path: Path) -> None:
    done = run(tmp_path, "bad", "good", "later")
    assert done.returncode != 0
    assert done.stderr.endswith("not all parts passed\n")
    end = done.stdout.partition("the slowest tests\n")[2].splitlines()
    assert end[:3] == ["99.00s setup    test_bad", "30.50s call     test_30", "29.50s call     test_29"]
    assert end[19:] == [
        "12.50s call     test_12",
        "",
        "the parts",
        "bad          1 failed",
        "good         3 passed",
        "later        2 passed",
    ]


def test_all_parts_passed(tmp_path: Path) -> None:
    (tmp_path / "build/test").mkdir(parents=True)
    (tmp_path / "build/test/old.log").write_text("1 failed\n")
    done = run(tmp_path, "good")
    assert (done.returncode, done.stderr) == (0, "")
    assert "failed" not in done.stdout


def test_what_tests_start_is_no_part_of_the_make_that_runs_them(tmp_path: Path) -> None:
    """They call make themselves, which would look for the job server of the other, and keep its options."""
    (tmp_path / "Makefile").write_text(f"include {PROGRAM.parents[1]}/Makefile\nprobe:\n\t@env\n")
    make = ["make", "--keep-going", "--jobs", "2", "--output-sync=target", "RESULTS=x", "probe"]
    done = subprocess.run(make, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith(("MAKEFLAGS", "MFLAGS"))] == []

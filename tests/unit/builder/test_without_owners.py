from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import without_owners

IGNORED, ALLOWED = 0x00050000, 0x7FFF0000


def answer(machine: str, architecture: int, call: int) -> int:
    """What the kernel would do, by the rules of man 2 seccomp."""
    program, position, value = without_owners.instructions(machine), 0, 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        if code == 0x20:
            value = {0: call, 4: architecture}[operand]
        elif code == 0x15:
            position += if_true if value == operand else if_false
        else:
            return operand


@pytest.mark.parametrize("machine", sorted(without_owners.CALLS))
def test_changes_of_owners_are_ignored_and_nothing_else(machine: str) -> None:
    architecture, calls = without_owners.CALLS[machine]
    assert {call for call in range(600) if answer(machine, architecture, call) == IGNORED} == set(calls)
    assert {answer(machine, architecture, call) for call in set(range(600)) - set(calls)} == {ALLOWED}
    assert answer(machine, 0x40000003, calls[0]) == ALLOWED  # another architecture, with numbers of its own


@pytest.mark.skipif(platform.machine() not in without_owners.CALLS, reason="no filter for this machine")
def test_the_real_chown_succeeds_without_effect(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    before = file.stat()
    argv = [sys.executable, without_owners.__file__, "chown", "1776653678:1776653678", str(file)]
    subprocess.run(argv, check=True)
    assert (file.stat().st_uid, file.stat().st_gid) == (before.st_uid, before.st_gid)


def test_the_owner_may_read_all_of_an_unpacked_image(tmp_path: Path) -> None:
    inside = tmp_path / "locked/below"
    inside.mkdir(parents=True)
    (inside / "file").write_text("x")
    (inside / "link").symlink_to("/etc/passwd")
    (tmp_path / "program").write_text("x")
    for path, mode in {inside / "file": 0, tmp_path / "program": 0o4755, inside: 0, tmp_path / "locked": 0}.items():
        path.chmod(mode)
    outside = Path("/etc/passwd").stat().st_mode
    Tree(tmp_path).let_owner_read()
    assert (tmp_path / "locked").stat().st_mode & 0o7777 == inside.stat().st_mode & 0o7777 == 0o500
    assert (inside / "file").stat().st_mode & 0o7777 == 0o400
    assert (tmp_path / "program").stat().st_mode & 0o7777 == 0o4755
    assert Path("/etc/passwd").stat().st_mode == outside
    for path in (tmp_path / "locked", inside):
        path.chmod(0o700)

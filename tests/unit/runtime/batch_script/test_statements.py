from __future__ import annotations

import pytest

from ctrain_runtime.batch_script.statements import read_statements
from ctrain_runtime.batch_script.variables import Variables


def words(text: str) -> list[list[str]]:
    """The words of each command, in a shell where A is `x y`."""
    shell = Variables({"A": "x y"})
    return [[word for written in found.words for word in shell.words(written)] for found in read_statements(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("srun -n 2 \\\n  python t.py", [["srun", "-n", "2", "python", "t.py"]]),
        ("a; b && c | d & e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a # b", [["a"]]),
        ("a b#c", [["a", "b#c"]]),
        ("echo don\\'t 'a b' \"c d\"", [["echo", "don't", "a b", "c d"]]),
        ("a >out 2>&1 </dev/null b", [["a", "b"]]),
        ("python - <<'EOF'\nimport x; srun\nEOF\nb", [["python", "-"], ["b"]]),
        ('bash -c "a $A\nb"', [["bash", "-c", "a x y\nb"]]),
        ("bash -c 'a $A'", [["bash", "-c", "a $A"]]),
        ('bash -c "a \\$A"', [["bash", "-c", "a $A"]]),
        ("a $A", [["a", "x", "y"]]),
        ('a "$A" ""', [["a", "x y", ""]]),
        ("a 'open", [["a", "open"]]),
    ],
)
def test_the_words_of_a_script(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_lines_are_those_where_a_command_starts() -> None:
    found = read_statements("#!/bin/sh\n\na \\\n  b | c\nd <x\n")
    assert [(each.line, each.text, each.end, each.reads) for each in found] == [
        (3, "a b", "|", False),
        (4, "c", "\n", False),
        (5, "d <x", "\n", True),
    ]

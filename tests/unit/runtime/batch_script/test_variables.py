from __future__ import annotations

import pytest

from ctrain_runtime.batch_script.statements import read_statements
from ctrain_runtime.batch_script.variables import Variables, as_written, is_known, unknown_in


def expand(text: str) -> str:
    shell = Variables({"N": "4", "DIR": "/d", "HOME": "/home/kim", "LATER": None}, {"wc-l<$PBS_NODEFILE": "8"})
    return shell.text(read_statements(text)[0].words[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${DIR}/x", "/d/x"),
        ("$((N * 2 + 1))", "9"),
        ("$(( $N / 2 ))", "2"),
        ("${NONE:-$DIR/y}", "/d/y"),
        ("${N:-5}", "4"),
        ("${N:?missing}", "4"),
        ("$(wc -l < $PBS_NODEFILE)", "8"),
        ('`wc -l <"${PBS_NODEFILE}"`', "8"),
        ("~/x", "/home/kim/x"),
        ("'~/x'", "~/x"),
    ],
)
def test_what_is_known(text: str, value: str) -> None:
    assert expand(text) == value


@pytest.mark.parametrize(
    "text", ["$NONE", "$LATER", "$(hostname)", "$((1 / 0))", "$((N ** N))", "${N%x}", "$1", "${LATER:-3}"]
)
def test_what_is_not_known_stays_as_it_is_written(text: str) -> None:
    value = expand(f"a{text}b" if text[1] in "({" else text)
    assert not is_known(value)
    assert unknown_in(value) == [text]
    assert text in as_written(value)


def test_a_value_cannot_fill_the_memory() -> None:
    shell = Variables({})
    shell.assign("A", "x" * 1000)
    for _ in range(100):
        shell.assign("A", shell.text(read_statements("$A$A")[0].words[0]))
    assert len(shell.values["A"] or "") < 100_000

from __future__ import annotations

import subprocess

from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.base.bash import array, exports, quote_argv

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4)
PRINT = r"""print() { [ "$#" = 0 ] || printf '%s\0' "$@"; }"""


def run(script: str) -> list[str]:
    """The words that a script prints, each with a zero byte."""
    argv = ["/bin/bash", "-p", "-c", f"{PRINT}\n{script}"]
    done = subprocess.run(argv, check=True, capture_output=True, env={"PATH": "/usr/bin:/bin"})
    return done.stdout.decode().split("\0")[:-1]


@given(WORDS)
def test_bash_reads_back_what_was_quoted(words: list[str]) -> None:
    assert run(quote_argv(["print", *words])) == words
    assert run(f'{array("words", words)}\nprint "${{words[@]}}"') == words


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_exported_values(value: str) -> None:
    """A program finds them in its environment."""
    (found,) = [line for line in run(f"{exports({'NAME': value})}\nenv -0") if line.startswith("NAME=")]
    assert found == f"NAME={value}"


def test_exports_are_sorted_so_that_scripts_do_not_change_by_themselves() -> None:
    assert exports({"B": "2", "A": "one two"}) == "export A='one two' B=2"

from __future__ import annotations

import json
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.base.bash import array, exports, quote_argv

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4)
PRINT = "import json, sys; json.dump(sys.argv[1:], sys.stdout)"


def run(script: str) -> str:
    argv = ["/bin/bash", "-p", "-c", script]
    return subprocess.run(argv, check=True, capture_output=True, encoding="utf-8", env={"PATH": "/usr/bin:/bin"}).stdout


@given(WORDS)
def test_bash_reads_back_what_was_quoted(words: list[str]) -> None:
    program = quote_argv(["python3", "-c", PRINT])
    assert json.loads(run(f"{program} {quote_argv(words)}")) == words
    assert json.loads(run(f'{array("words", words)}\n{program} "${{words[@]}}"')) == words


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_exported_values(value: str) -> None:
    ask = "import json, os, sys; json.dump(os.environ['NAME'], sys.stdout)"
    assert json.loads(run(f"{exports({'NAME': value})}\n{quote_argv(['python3', '-c', ask])}")) == value


def test_exports_are_sorted_so_that_scripts_do_not_change_by_themselves() -> None:
    assert exports({"B": "2", "A": "one two"}) == "export A='one two' B=2"

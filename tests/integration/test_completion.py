"""Completion in real shells on a terminal: what stands there after a tab."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples.sample_images import write_store

PROMPT = "ready> "
SHELLS = {
    "bash": (["bash", "--norc", "-i"], "source <(ctrain completion bash)"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -Du; unsetopt prompt_sp; source <(ctrain completion zsh)",
    ),
}
# The file of `ctrain install`, which compinit finds.
INSTALLED = (
    ["zsh", "-f", "-i"],
    "mkdir own; ctrain completion zsh >own/_ctrain; fpath=(~/own $fpath); autoload -U compinit; compinit -Du; "
    "unsetopt prompt_sp",
)


class Terminal:
    """An interactive shell."""

    def __init__(self, shell: tuple[list[str], str], environment: dict[str, str]) -> None:
        argv, setup = shell
        self._process, self._screen = pty.fork()
        if not self._process:
            os.execvpe(argv[0], argv, {**environment, "TERM": "dumb"})  # noqa: S606  # argv is from above
        # In two parts: the prompt is not to be seen while it is typed.
        self._send(f"cd; {setup}; PS1='{PROMPT[:2]}''{PROMPT[2:]}'\n")
        self._until(PROMPT)

    def after_tab(self, text: str) -> str:
        """The line after `text` and a tab are typed, up to the cursor."""
        self._send(f"{text}\t#")  # which comes when the completion is done
        line = self._until("#")
        self._send("\x15echo do''ne\n")  # Ctrl-U takes the line away
        self._until("done")
        self._until(PROMPT)
        return _as_shown(line)

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._screen)

    def _send(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def _until(self, end: str) -> str:
        """What is shown next, up to `end`."""
        shown = ""
        while not shown.endswith(end):
            if not select.select([self._screen], [], [], 20)[0]:
                raise AssertionError(f"the shell shows {shown!r} and nothing more")
            shown += os.read(self._screen, 1).decode(errors="replace")
        return shown[: -len(end)]


def _as_shown(text: str) -> str:
    """Output as a terminal shows it: without its commands, and after its steps back."""
    line = ""
    for letter in re.sub(r"\x1b\[[?\d;]*[a-zA-Z]|[\a\r]", "", text):
        line = line[:-1] if letter == "\b" else line + letter
    return line


def find_shell(name: str) -> None:
    if not shutil.which(name):
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {name}: see tests/cluster/install")
        pytest.skip(f"no {name} here: tests/cluster/install brings it")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    channels = {"pytorch_prod": "pytorch_24.12-hd-py3-r1.sif"}
    store = write_store(home / "store", {"release": 1}, {"release": 2}, {"name": "cpu"}, channels=channels)
    write_store(home / "broken")
    (home / "broken/ctrain-store.json").write_text("{")
    (home / "file.txt").touch()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "CTRAIN_STORE": str(store), "LANG": "C.UTF-8"}


@pytest.fixture(scope="module", params=list(SHELLS))
def terminal(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Terminal]:
    find_shell(request.param)
    shell = Terminal(SHELLS[request.param], environment)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("ctrain ima", "ctrain images "),
        ("ctrain run --im", "ctrain run --image "),
        ("ctrain run --image c", "ctrain run --image cpu "),
        ("ctrain run --image pyt", "ctrain run --image pytorch"),  # or one of its channels
        ("ctrain run --image pytorch:p", "ctrain run --image pytorch:prod "),
        ("ctrain run --image pytorch:2", "ctrain run --image pytorch:24.12-hd-r"),
        ("ctrain run --image=pytorch:p", "ctrain run --image=pytorch:prod "),
        ('ctrain run --image "pytorch:p', 'ctrain run --image "pytorch:prod" '),
        ("cd /; X=1 ctrain run --image cpu --site n", "cd /; X=1 ctrain run --image cpu --site neuron "),
        ("ctrain run light", "ctrain run lightning "),
        ("ctrain store pro", "ctrain store promote "),
        ("ctrain store promote pytorch 24.12-hd-r1 p", "ctrain store promote pytorch 24.12-hd-r1 prod "),
        ("ctrain store retire pytorch:24.12-hd-r1 c", "ctrain store retire pytorch:24.12-hd-r1 cpu:24.12-hd-r3 "),
        ("ctrain store du --store ~/store --js", "ctrain store du --store ~/store --json "),
        ("ctrain run -- cat ~/fi", "ctrain run -- cat ~/file.txt "),
        ("ctrain run --data ~/sto", "ctrain run --data ~/store/"),
        ("ctrain run --store ~/broken --image c", "ctrain run --store ~/broken --image c"),
    ],
)
def test_what_a_tab_makes_of_a_line(terminal: Terminal, typed: str, line: str) -> None:
    assert terminal.after_tab(typed) == line


def test_zsh_finds_the_installed_file_by_itself(environment: dict[str, str]) -> None:
    find_shell("zsh")
    shell = Terminal(INSTALLED, environment)
    try:
        assert shell.after_tab("ctrain ima") == "ctrain images "  # the first one loads the file
        assert shell.after_tab("ctrain run --im") == "ctrain run --image "
    finally:
        shell.close()

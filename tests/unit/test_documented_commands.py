"""Every command line of ctrain that README and the pages show is one that ctrain takes: commands, options, values."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli import mistakes
from ctrain_runtime.cli.main import RUNTIME_VERBS, parser_of
from ctrain_runtime.errors import CtrainError

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", *sorted(TOP.glob("docs/*.md"))]
BLOCK = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(?:\$ |\w+\$ +)?ctrain +([a-z].*)")
COMMENT = re.compile(r"(?:\s{3,}| #).*")  # lists of commands say after them what they do
OPERATORS = {"&&", "||", "|", ";", "&", ">", "2>"}
VERBS = {verb.name: verb for verb in (*RUNTIME_VERBS, *BUILD_VERBS)}


def command_lines(page: Path) -> Iterator[str]:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if (command := COMMAND.match(line)) and command[1].split()[0] in VERBS:
                yield COMMENT.sub("", command[1])


def complaint(line: str) -> str:
    """Of ctrain about the line; "" if it would start. A `...` stands for more."""
    words = shlex.split(line)
    end = next((at for at, word in enumerate(words) if word in OPERATORS), len(words))
    name, *argv = [word for word in words[:end] if word != "..."]
    verb = VERBS[name]
    own, rest = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = parser_of(verb)
    if verb.default_action and own and own[0] not in ("show", "diff") and not own[0].startswith("-"):
        own.insert(0, verb.default_action)
    try:
        args, unknown = parser.parse_known_args(own, argparse.Namespace(rest=rest, verbs=tuple(VERBS.values())))
        mistakes.check(parser, own, args, unknown)
    except CtrainError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_ctrain_takes_every_command_of_the_page(page: Path) -> None:
    answers = {line: complaint(line) for line in command_lines(page)}
    assert {line: answer for line, answer in answers.items() if answer} == {}


def test_commands_are_found() -> None:
    assert sum(len(list(command_lines(page))) for page in PAGES) > 200
    assert "sync" in complaint("store snyc a b")
    assert complaint("run --nods 2 -- python train.py")

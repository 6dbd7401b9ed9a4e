"""The command line as a whole: all verbs, of the runtime and of the builder."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_runtime.cli.main import GROUPS, RUNTIME_VERBS, Verb, main, parser_of

VERBS = {verb.name: verb for verb in (*RUNTIME_VERBS, *BUILD_VERBS)}
FIRST = ("nodes", "gpus-per-node", "image", "data", "partition", "time", "env", "mount", "resume", "dry-run")


def overview(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(list(VERBS.values()), ["--help"]) == 0
    return capsys.readouterr().out


def test_no_name_is_taken_twice() -> None:
    assert len(VERBS) == len(RUNTIME_VERBS) + len(BUILD_VERBS)


def test_each_verb_is_in_exactly_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [line.split()[0] for line in overview(capsys).splitlines() if line.startswith("  ")]
    assert sorted(shown) == sorted(VERBS)
    assert {verb.group for verb in VERBS.values()} == set(GROUPS)


def test_a_group_has_its_verbs_below_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    for paragraph in overview(capsys).split("\n\n")[2:-1]:
        title, *rows = paragraph.splitlines()
        assert [row.split()[0] for row in rows] == [verb.name for verb in VERBS.values() if f"{verb.group}:" == title]
        assert all(len(row) <= 80 for row in rows)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, and those of its actions."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def examples(verb: Verb) -> list[str]:
    texts = [parser.description or "" for parser in parsers(parser_of(verb))]
    return [line for text in texts for line in text.splitlines() if re.match(r"  (ctrain|source) ", line)]


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_examples_can_be_pasted(verb: Verb) -> None:
    """What explains them is a comment of the shell, and the options are those that the command has."""
    for line in examples(verb):
        words = shlex.split(line, comments=True)
        assert "..." not in words, line
        if words[0] == "ctrain":
            end = words.index("--") if "--" in words else len(words)
            assert VERBS[words[1]].takes_command or end == len(words), line
            parser_of(VERBS[words[1]]).parse_args(words[2:end])  # raises UsageError


def test_every_verb_that_starts_runs_has_examples() -> None:
    assert all(len(examples(verb)) >= 1 for verb in VERBS.values() if verb.takes_command)


def options(group: argparse._ArgumentGroup) -> list[str]:
    return [action.option_strings[-1][2:] for action in group._group_actions if action.option_strings]


@pytest.mark.parametrize(("verb", "missing"), [("run", ()), ("submit", ("dry-run",))])
def test_of_a_run_the_options_that_most_people_need_come_first(verb: str, missing: tuple[str, ...]) -> None:
    _, first, *others = parser_of(VERBS[verb])._action_groups
    assert options(first) == ["help", *(option for option in FIRST if option not in missing)]
    assert all(group.title and 1 < len(options(group)) <= 10 for group in others)
    assert len(others) == (8 if verb == "submit" else 7)


def test_verbs_that_run_on_a_login_node_are_those_that_name_one() -> None:
    """`--on IMAGE` of others is another option."""
    named = {name for name, verb in VERBS.items() for parser in parsers(parser_of(verb)) if has(parser, "login_node")}
    runs = {"run", "submit", "attach", "status", "logs", "wait", "cancel", "runs", "shell", "jupyter", "bench"}
    assert named == runs | {"report", "compare"}
    assert any(has(parser, "on") for parser in parsers(parser_of(VERBS["layer"])))


def has(parser: argparse.ArgumentParser, dest: str) -> bool:
    return any(action.dest == dest for action in parser._actions)

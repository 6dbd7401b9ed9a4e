"""Explain a command or a topic; without one, list the topics."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ctrain_runtime.base.paths import data_dir
from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.base.text import table
from ctrain_runtime.cli.main import Verb, parser_of
from ctrain_runtime.errors import UsageError, exit_codes

EXIT_CODES, SCHEMAS = "exit-codes", "schemas"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a command, or one of the topics")


def execute(args: argparse.Namespace) -> int:
    print(_explain(args.topic, args.verbs) if args.topic else _overview(args.verbs))
    return 0


def topics(verbs: Sequence[Verb]) -> list[str]:
    """All topics: the exit codes, the schemas of files, the pages of the documentation, and the commands, of which some
    have a page."""
    return list(dict.fromkeys([EXIT_CODES, SCHEMAS, *_pages(), *(verb.name for verb in verbs)]))


def _pages() -> dict[str, Path]:
    """The documentation, by topic."""
    return {path.stem: path for path in sorted(data_dir("docs").glob("*.md"))}


def _explain(topic: str, verbs: Sequence[Verb]) -> str:
    name = topic[:-3] if topic.endswith(".md") else topic
    if name == EXIT_CODES:
        return _exit_codes()
    if name == SCHEMAS:
        return _schemas()
    parts = [parser_of(verb).format_help() for verb in verbs if verb.name == name]
    if page := _pages().get(name):
        parts.append(page.read_text(encoding="utf-8"))
    if not parts:
        hint = f"{suggest(name, topics(verbs))} List the topics with: ctrain help".strip()
        raise UsageError(f"unknown topic {topic!r}", hint)
    return "\n".join(parts).rstrip("\n")


def _exit_codes() -> str:
    rows = [f"  {code:>3}  {meaning}" for code, meaning in exit_codes()]
    return "\n".join(["The exit code is the program's own, or one of ctrain's:", *rows])


def _schemas() -> str:
    paths = sorted((data_dir("docs") / "schemas").glob("*.json"))
    first = (
        "JSON Schemas of job.yaml, images.yaml, ctrain.yaml and site files; an editor takes one by a file's first line:"
    )
    return "\n".join([first, *(f"  # yaml-language-server: $schema={path}" for path in paths)])


def _overview(verbs: Sequence[Verb]) -> str:
    titles = {name: path.read_text(encoding="utf-8").partition("\n")[0] for name, path in _pages().items()}
    rows = [
        (EXIT_CODES, "Exit codes"),
        (SCHEMAS, "Schemas of files, for editors"),
        *((name, title.lstrip("# ")) for name, title in titles.items()),
    ]
    commands = ", ".join(verb.name for verb in verbs)
    usage = f"Show a topic with: ctrain help TOPIC. Commands are topics, too: {commands}"
    return f"{table(('TOPIC', 'ABOUT'), rows)}\n\n{usage}"

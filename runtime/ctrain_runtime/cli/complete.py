"""Which words can stand at the end of a command line, for the scripts of `ctrain completion`.

Verbs need nothing for it: options are those of the verb's parser, and what an argument takes is what its metavar says
(IMAGE, SITE ...).
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Optional

from ctrain_runtime import job
from ctrain_runtime.cli.help import topics
from ctrain_runtime.cli.main import Verb, parser_of
from ctrain_runtime.cli.stores import open_stores
from ctrain_runtime.manifest import read_manifest
from ctrain_runtime.site import select_site, site_names
from ctrain_runtime.store import DEFAULT_CHANNEL, RETIRED

_PLAIN = re.compile(r"[A-Za-z0-9@:._=+-]+")  # words that no shell takes for anything else, whoever wrote the store


def words(verbs: Sequence[Verb], line: str, part: str) -> list[str]:
    """The words that can replace `part` at the end of `line`, which is a command line up to the cursor.

    `part` is what the shell takes for the last word: of `pytorch:pr`, bash wants to have completed `pr`. Raises
    nothing: what is wrong is told when the command runs, not while it is typed.
    """
    try:
        before, last = _split(line)
        found = [word for word in _candidates(verbs, before, last) if word.startswith(last) and _PLAIN.fullmatch(word)]
    except (Exception, SystemExit):
        return []
    kept = len(last) - len(part) if last.endswith(part) else 0
    return sorted({word[kept:] for word in found})


def _split(line: str) -> tuple[list[str], str]:
    """The words of a line that are finished, and its last one, which may be empty or lack its closing quote."""
    for quote in ("", "'", '"'):
        try:
            *before, last = shlex.split(f"{line}\0{quote}")
        except ValueError:
            continue
        return before, last.rstrip("\0")
    return [], ""


def _candidates(verbs: Sequence[Verb], before: Sequence[str], last: str) -> Sequence[str]:
    if len(before) == 1:
        return [*(verb.name for verb in verbs), "--help", "--version"]
    if "--" in before:
        return []
    if before[1:] == ["help"] and not last.startswith("-"):
        return topics(verbs)
    place = _Place(next(parser_of(verb) for verb in verbs if verb.name == before[1]))
    for word in before[2:]:
        place.take(word)
    option, equals, value = last.partition("=")
    if place.waiting or not last.startswith("-"):
        return place.expected(last)
    if not equals:
        return list(place.options)
    place.waiting = place.options[option]
    return [f"{option}={one}" for one in place.expected(value)]


class _Place:
    """How far a command line has come: the values so far, and the option that waits for one."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.values: dict[str, str] = {}
        self.waiting: Optional[argparse.Action] = None
        self._enter(parser)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        self.options = {name: action for action in parser._actions for name in action.option_strings}
        self._arguments = [action for action in parser._actions if not action.option_strings]

    def take(self, word: str) -> None:
        """Go on by a word."""
        name, equals, value = word.partition("=")
        if self.waiting:
            self.values[self.waiting.dest], self.waiting = word, None
        elif name in self.options and equals:
            self.values[self.options[name].dest] = value
        elif name in self.options:
            self.waiting = self.options[name] if self.options[name].nargs is None else None
        elif self._arguments and not word.startswith("-"):
            argument = self._arguments[0]
            self.values[argument.dest] = word
            if isinstance(argument, argparse._SubParsersAction):
                self._enter(argument.choices[word])
            elif argument.nargs not in ("*", "+"):
                self._arguments.pop(0)

    def expected(self, last: str) -> Sequence[str]:
        """The values that the next word can be."""
        action = self.waiting or next(iter(self._arguments), None)
        if action is None:
            return []
        kind = str(action.metavar or action.dest).upper()
        if action.choices:
            return list(action.choices)
        if kind in ("JOB", "SITE"):
            return job.names() if kind == "JOB" else site_names()
        return _published(kind, self.values, last) if "--store" in self.options else []


def _published(kind: str, said: Mapping[str, str], last: str) -> Sequence[str]:
    """What a verb that looks in stores can be told for an argument of a kind, after the values `said`."""
    if kind not in ("IMAGE", "OLD", "NEW", "NAME", "NAME:VERSION", "VERSION", "CHANNEL"):
        return []
    stores = open_stores(select_site(said.get("site", ""), said))
    if said.get("action") == "restore":
        retired = (read_manifest(path) for store in stores for path in (store.root / RETIRED).glob("*_*.json"))
        return [f"{manifest.name}:{manifest.version}" for manifest in retired]
    images = [image for store in stores for image in store.images()]
    if kind in ("VERSION", "CHANNEL"):
        images = [image for image in images if image.manifest.name == said.get("name", image.manifest.name)]
        versions = [image.manifest.version for image in images] if kind == "VERSION" else []
        return [*versions, *(channel for image in images for channel in image.channels), DEFAULT_CHANNEL]
    names = [image.manifest.name for image in images]
    versions = [f"{image.manifest.name}:{image.manifest.version}" for image in images]
    channels = [f"{image.manifest.name}:{channel}" for image in images for channel in image.channels]
    if kind == "NAME":
        return names
    if kind == "NAME:VERSION":
        return versions
    return [*channels, *(versions if ":" in last else names)]

"""Completes the last word of a command line, for the scripts of `ctrain completion`.

Verbs need no code for it: options come from the verb's parser, and values follow from metavars (IMAGE, SITE ...).
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Optional

from ctrain_runtime import job
from ctrain_runtime.cli.help import topics
from ctrain_runtime.cli.main import Verb, parser_of
from ctrain_runtime.site.select import select_site, site_names
from ctrain_runtime.store.manifest import read_manifest
from ctrain_runtime.store.store import DEFAULT_CHANNEL, RETIRED, open_stores

NEWEST = 50  # runs that are offered
_PLAIN = re.compile(r"[A-Za-z0-9@:._=+-]+")  # safe in every shell: names may come from another user's store


def words(verbs: Sequence[Verb], line: str, part: str) -> list[str]:
    """The words that can replace `part` at the end of `line`, which is a command line up to the cursor.

    `part` is the last word by the shell's rules: of `pytorch:pr`, bash completes only `pr`. Never raises: errors are
    reported when the command runs, not while it is typed.
    """
    try:
        before, last = _split(line)
        candidates = _candidates(verbs, before, last)
    except (Exception, SystemExit):  # a traceback would land in the line that is typed
        return []
    start = len(last) - len(part) if last.endswith(part) else 0
    return sorted({word[start:] for word in candidates if word.startswith(last) and _PLAIN.fullmatch(word)})


def _split(line: str) -> tuple[list[str], str]:
    """The complete words of a line, and its last one, which may be empty or lack its closing quote."""
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
    line = _CommandLine(next(parser_of(verb) for verb in verbs if verb.name == before[1]))
    for word in before[2:]:
        line.append(word)
    option, equals, value = last.partition("=")
    if line.incomplete or not last.startswith("-"):
        return line.candidates(last)
    if not equals:
        return list(line.options)
    line.incomplete = line.options[option]
    return [f"{option}={candidate}" for candidate in line.candidates(value)]


class _CommandLine:
    """A verb's arguments so far: their values, and the option that still lacks its value."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.values: dict[str, str] = {}
        self.incomplete: Optional[argparse.Action] = None
        self._enter(parser)

    def _enter(self, parser: argparse.ArgumentParser) -> None:
        self.options = {name: action for action in parser._actions for name in action.option_strings}
        self._arguments = [action for action in parser._actions if not action.option_strings]

    def append(self, word: str) -> None:
        name, equals, value = word.partition("=")
        if self.incomplete:
            self.values[self.incomplete.dest], self.incomplete = word, None
        elif name in self.options and equals:
            self.values[self.options[name].dest] = value
        elif name in self.options:
            self.incomplete = self.options[name] if self.options[name].nargs is None else None
        elif self._arguments and not word.startswith("-"):
            argument = self._arguments[0]
            self.values[argument.dest] = word
            if isinstance(argument, argparse._SubParsersAction):
                self._enter(argument.choices[word])
            elif argument.nargs not in ("*", "+"):
                self._arguments.pop(0)

    def candidates(self, last: str) -> Sequence[str]:
        """The possible values of the next word."""
        action = self.incomplete or next(iter(self._arguments), None)
        if action is None:
            return []
        kind = str(action.metavar or action.dest).upper()
        if action.choices:
            return list(action.choices)
        if kind in ("JOB", "SITE"):
            return job.names() if kind == "JOB" else site_names()
        if kind == "RUN":
            return _runs(self.values)
        return _published(kind, self.values, last) if "--store" in self.options else []


def _runs(values: Mapping[str, str]) -> Sequence[str]:
    """The names of the caller's newest runs."""
    from ctrain_runtime.run import parent_directories  # only here: start-up is measured
    from ctrain_runtime.run.directory import LAST
    from ctrain_runtime.run.pick_up import list_runs

    parents = parent_directories.searched(values.get("site", ""), values.get("runs", ""))
    return [LAST, *(run.name for run in islice(list_runs(*parents), NEWEST))]


def _published(kind: str, values: Mapping[str, str], last: str) -> Sequence[str]:
    """Names, versions and channels in the stores, for an argument of a kind; `values` are the arguments before it."""
    if kind not in ("IMAGE", "NAME", "NAME:VERSION", "NAME[:VERSION]", "VERSION", "CHANNEL"):
        return []
    stores = open_stores(select_site(values.get("site", ""), values).store_dirs())
    retired: list[str] = []
    if values.get("action") in ("restore", "remove", "withdraw"):
        paths = (path for store in stores for path in (store.root / RETIRED).glob("*_*.json"))
        retired = [read_manifest(path).reference for path in paths]
        if values["action"] == "restore":
            return retired
    images = [image for store in stores for image in store.images()]
    if kind in ("VERSION", "CHANNEL"):
        images = [image for image in images if image.manifest.name == values.get("name", image.manifest.name)]
        versions = [image.manifest.version for image in images] if kind == "VERSION" else []
        return [*versions, *(channel for image in images for channel in image.channels), DEFAULT_CHANNEL]
    names = [image.manifest.name for image in images]
    versions = [image.manifest.reference for image in images]
    channels = [f"{image.manifest.name}:{channel}" for image in images for channel in image.channels]
    if kind == "NAME":
        return names
    if kind == "NAME[:VERSION]":
        return versions if ":" in last else names
    if kind == "NAME:VERSION":
        return [*versions, *retired]
    return [*channels, *(versions if ":" in last else names)]

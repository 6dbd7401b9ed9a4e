"""Settings as KEY=VALUE or --KEY VALUE words: a dataclass, or a parser, has their names, types and defaults."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import fields
from typing import Any, Optional, TypeVar

from example import InputError

Config = TypeVar("Config")


class OptionParser(argparse.ArgumentParser):
    """An ArgumentParser that takes its options as KEY=VALUE, too."""

    def parse_known_args(self, args: Optional[Sequence[str]] = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([option for word in words for option in self._options(word)], namespace)

    def _options(self, word: str) -> list[str]:
        key, equals, value = word.partition("=")
        name = f"--{key.replace('_', '-')}"
        action = self._option_string_actions.get(name) if equals else None
        if action is None:
            return [word]
        is_flag = action.nargs == 0
        return [f"{name}={value}"] if not is_flag else [name] if value.lower() == "true" else []


def parse(
    words: list[str], config: type[Config], choices: dict[str, tuple[str, ...]], may_be_zero: Container[str]
) -> Config:
    """The settings of KEY=VALUE, --KEY=VALUE and --KEY VALUE words. Numbers are positive and finite, if they may not be
    zero. Raises InputError."""
    types = {field.name: type(field.default) for field in fields(config)}
    values = {}
    for key, text in _pairs(words):
        if key not in types:
            raise InputError(f"unknown setting {key!r}; pass KEY=VALUE with a key of {', '.join(types)}")
        try:
            values[key] = {"true": True, "false": False}[text.lower()] if types[key] is bool else types[key](text)
        except (ValueError, KeyError):
            raise InputError(f"{key} must be of type {types[key].__name__}, not {text!r}") from None
        if values[key] not in choices.get(key, (values[key],)):
            raise InputError(f"{key} must be one of {', '.join(choices[key])}, not {text!r}")
        if types[key] in (int, float) and not is_allowed(values[key], key in may_be_zero):
            raise InputError(f"{key} must be {'0 or ' if key in may_be_zero else ''}a positive number, not {text!r}")
    return config(**values)


def is_allowed(number: float, may_be_zero: bool) -> bool:
    """Whether a number is finite, and positive or, if it may, zero."""
    return math.isfinite(number) and (number > 0 or (may_be_zero and number == 0))


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Each key with its text; --KEY alone is true, and its hyphens are underscores."""
    following = [*words[1:], "--"]
    is_value = False
    for word, behind in zip(words, following):
        key, equals, text = word.partition("=")
        if is_value:
            is_value = False
        elif key.startswith("--"):
            is_value = not equals and not behind.startswith("--")
            yield key[2:].replace("-", "_"), text if equals else behind if is_value else "true"
        else:
            yield key, text

"""Converts plain data into frozen dataclasses, strictly: unknown keys and wrong types are errors that name the key."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import typing
from collections.abc import Mapping
from enum import EnumMeta
from typing import Any, TypeVar, Union

from ctrain_runtime.base.suggest import suggest
from ctrain_runtime.errors import ConfigError

T = TypeVar("T")
_TYPE_NAMES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "a mapping",
    datetime.date: "a date",
    type(None): "null",
}
Source = Union[str, tuple[Any, ...]]  # a file name; or the Source of the enclosing mapping, and the keys below it


# `ctrain images` reads a thousand manifests, so this is optimised: types are analysed once per dataclass, most values
# pass the first comparison, and a Source is formatted only for an error message.


def load(kind: type[T], data: Mapping[str, Any], source: Source) -> T:
    """Create the dataclass `kind` from plain data; errors name `source` (file and key). Raises ConfigError."""
    hints, required = _members(kind)  # type: ignore[arg-type]  # classes are hashable
    if not data.keys() <= hints.keys():
        key = next(key for key in data if key not in hints)
        raise ConfigError(f"{_format(source)}: unknown key {key!r}", _suggestion(str(key), hints))
    if not data.keys() >= required:
        name = next(name for name in hints if name in required and name not in data)
        raise ConfigError(f"{_format(source)}: key {name!r} is missing")
    return kind(
        **{
            key: value if type(value) is hints[key] else _convert(hints[key], value, (source, key))
            for key, value in data.items()
        }
    )


def load_known(kind: type[T], data: Mapping[str, Any], source: Source) -> T:
    """As `load`, without the keys that only a newer ctrain knows. Raises ConfigError."""
    known, _ = _members(kind)  # type: ignore[arg-type]  # classes are hashable
    return load(kind, {key: value for key, value in data.items() if key in known}, source)


@functools.cache
def _members(kind: type) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields, and the names of those without a default."""
    fields, hints = dataclasses.fields(kind), typing.get_type_hints(kind)
    required = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
    return {field.name: hints[field.name] for field in fields}, frozenset(required)


@functools.cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """The origin (Union, tuple, dict ...) and arguments of a type, and whether it is a dataclass."""
    return typing.get_origin(hint), typing.get_args(hint), dataclasses.is_dataclass(hint)


def _convert(hint: Any, value: Any, source: tuple[Source, ...]) -> Any:
    """`value` as the annotated type `hint`; lists become tuples so that the result is frozen."""
    if type(value) is hint:
        return value
    origin, parts, is_dataclass = _shape(hint)
    if is_dataclass and isinstance(value, dict):
        return load(hint, value, source)
    if origin is Union:
        for part in parts:
            if _fits(part, value):
                return _convert(part, value, source)
    elif origin is tuple and isinstance(value, list):
        return tuple([_convert(parts[0], item, source) for item in value])
    elif origin is dict and isinstance(value, dict):
        kind = parts[1]
        return {
            str(key): item if type(item) is kind else _convert(kind, item, (*source, key))
            for key, item in value.items()
        }
    elif origin is typing.Literal or isinstance(hint, EnumMeta):
        choices = {choice: choice for choice in parts} or {choice.value: choice for choice in hint}
        if type(value) is str and value in choices:
            return choices[value]
        raise ConfigError(f"{_format(source)} must be {' or '.join(map(str, choices))}, not {value!r}")
    raise ConfigError(
        f"{_format(source)} must be {_name(hint)}, not {type_name(value)} ({value!r})",
        "If it is text, put it in quotes" if str in (hint, *parts) and isinstance(value, (bool, int, float)) else "",
    )


def _format(source: Source) -> str:
    """As in FILE: key.key."""
    if isinstance(source, str):
        return source
    outer, *keys = source
    return f"{_format(outer)}: {'.'.join(map(str, keys))}"


def _fits(hint: Any, value: Any) -> bool:
    origin, parts, is_dataclass = _shape(hint)
    if origin is tuple:
        return isinstance(value, list)
    if origin is typing.Literal:
        return type(value) is str and value in parts
    if origin is not None or is_dataclass:
        return isinstance(value, dict)
    return type(value) is hint  # not isinstance: a bool is not accepted as an int


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is Union:
        parts = typing.get_args(hint)
        return " or ".join(_name(part) for part in parts if not (part is int and float in parts))
    if hint in _TYPE_NAMES:
        return _TYPE_NAMES[hint]
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return "a list" if typing.get_origin(hint) is tuple else "a mapping"


def type_name(value: Any) -> str:
    """The YAML name of a value's type, with its article."""
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def _suggestion(key: str, known: Mapping[str, Any]) -> str:
    return suggest(key, known) or f"Known keys: {', '.join(sorted(known))}"

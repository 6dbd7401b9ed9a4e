"""Plain data into frozen dataclasses, strictly: an unknown or wrongly typed key is an error with its place."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, Union

from ctrain_runtime.errors import ConfigError
from ctrain_runtime.suggest import suggest

T = TypeVar("T")
Where = Union[str, tuple[Any, ...]]  # a file; or the place of what a value is in, and its keys there


# `ctrain images` reads a thousand manifests: so types are looked at once, most values fit at the first glance, and a
# place is put into words only when there is something to complain of.


def load(kind: type[T], data: Mapping[str, Any], where: Where) -> T:
    """Make the dataclass `kind` from plain data; `where` is the file (and key) named in errors. Raises ConfigError."""
    hints, required = _members(kind)  # type: ignore[arg-type]  # classes are hashable
    if not data.keys() <= hints.keys():
        key = next(key for key in data if key not in hints)
        raise ConfigError(f"{_place(where)}: unknown key {key!r}", _suggestion(str(key), hints))
    if not data.keys() >= required:
        name = next(name for name in hints if name in required and name not in data)
        raise ConfigError(f"{_place(where)}: key {name!r} is missing")
    return kind(
        **{
            key: value if type(value) is hints[key] else _convert(hints[key], value, (where, key))
            for key, value in data.items()
        }
    )


@functools.cache
def _members(kind: type) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields, and the names of those that have no default."""
    fields, hints = dataclasses.fields(kind), typing.get_type_hints(kind)
    required = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
    return {field.name: hints[field.name] for field in fields}, frozenset(required)


@functools.cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Of a type: what it is a case of (Union, tuple, dict ...), the types in it, and whether it is a dataclass."""
    return typing.get_origin(hint), typing.get_args(hint), dataclasses.is_dataclass(hint)


def _convert(hint: Any, value: Any, where: tuple[Where, ...]) -> Any:
    """`value` as the annotated type `hint`; lists become tuples so that the result is frozen."""
    if type(value) is hint:
        return value
    origin, parts, is_dataclass = _shape(hint)
    if is_dataclass and isinstance(value, dict):
        return load(hint, value, where)
    if origin is Union:
        for part in parts:
            if _fits(part, value):
                return _convert(part, value, where)
    elif origin is tuple and isinstance(value, list):
        return tuple([_convert(parts[0], item, where) for item in value])
    elif origin is dict and isinstance(value, dict):
        kind = parts[1]
        return {
            str(key): item if type(item) is kind else _convert(kind, item, (*where, key)) for key, item in value.items()
        }
    elif origin is typing.Literal:
        if value in parts:
            return value
        raise ConfigError(f"{_place(where)} is {value!r}", f"It can be {', '.join(map(str, parts))}")
    raise ConfigError(
        f"{_place(where)} should be {_name(hint)}, not {kind_of(value)} ({value!r})",
        "If it is text, put it in quotes" if str in (hint, *parts) and isinstance(value, (bool, int, float)) else "",
    )


def _place(where: Where) -> str:
    """As in FILE: key.key."""
    if isinstance(where, str):
        return where
    outside, *keys = where
    return f"{_place(outside)}: {'.'.join(map(str, keys))}"


def _fits(hint: Any, value: Any) -> bool:
    origin, _, is_dataclass = _shape(hint)
    if origin is tuple:
        return isinstance(value, list)
    if origin is not None or is_dataclass:
        return isinstance(value, dict)
    return type(value) is hint  # not isinstance: True is no int here


def _name(hint: Any) -> str:
    words = {str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "nothing"}
    if typing.get_origin(hint) is Union:
        return " or ".join(dict.fromkeys(_name(part) for part in typing.get_args(hint)))
    if hint in words:
        return words[hint]
    return "a list" if typing.get_origin(hint) is tuple else "keys and values"


def kind_of(value: Any) -> str:
    """What people call a value's type."""
    words = {
        str: "text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "keys and values",
    }
    return words.get(type(value), "nothing" if value is None else type(value).__name__)


def _suggestion(key: str, known: Mapping[str, Any]) -> str:
    return suggest(key, known) or f"Known keys: {', '.join(sorted(known))}"

"""YAML files into frozen dataclasses, strictly: an unknown, doubled or wrongly typed key is an error with its place."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union

import yaml

from ctrain_runtime.errors import ConfigError

T = TypeVar("T")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice; plain YAML silently drops the first."""


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    written = list(node.value)
    made = loader.construct_mapping(node, deep=True)  # first: it refuses keys that are lists or mappings
    seen: set[Any] = set()
    for key_node, _ in written:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands here twice", key_node.start_mark)
        seen.add(key)
    return made


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError naming file and line."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506  # a SafeLoader, only stricter
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_line(error)}: {_problem(error)}") from error
    except ValueError as error:  # as for 2026-13-45, which YAML takes for a date
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected keys and values, found {_kind(data)}")
    return data


def load(kind: type[T], data: Mapping[str, Any], where: str) -> T:
    """Make the dataclass `kind` from plain data; `where` is the file (and key) named in errors."""
    fields, hints = _members(kind)  # type: ignore[arg-type]  # classes are hashable
    for key in data:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}", _suggestion(str(key), fields))
    for name, field in fields.items():
        if name not in data and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}: key {name!r} is missing")
    return kind(**{key: _convert(hints[key], value, where, key) for key, value in data.items()})


@functools.cache
def _members(kind: type) -> tuple[dict[str, dataclasses.Field[Any]], dict[str, Any]]:
    """The fields of a dataclass, and their types: to find these takes longer than all else."""
    return {field.name: field for field in dataclasses.fields(kind)}, typing.get_type_hints(kind)


def _convert(hint: Any, value: Any, *where: str) -> Any:
    """`value` as the annotated type `hint`; lists become tuples so that the result is frozen.

    `where` is the file, then the keys: put together only when there is something to complain of.
    """
    if type(value) is hint:
        return value
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return load(hint, value, _place(where))  # type: ignore[arg-type]  # a class, not an instance
    if origin is Union:
        for part in parts:
            if _fits(part, value):
                return _convert(part, value, *where)
    elif origin is tuple and isinstance(value, list):
        return tuple(_convert(parts[0], item, *where) for item in value)
    elif origin is dict and isinstance(value, dict):
        return {str(key): _convert(parts[1], item, *where, key) for key, item in value.items()}
    elif origin is typing.Literal:
        if value in parts:
            return value
        raise ConfigError(f"{_place(where)} is {value!r}", f"It can be {', '.join(map(str, parts))}")
    raise ConfigError(f"{_place(where)} should be {_name(hint)}, not {_kind(value)} ({value!r})")


def _place(where: Sequence[str]) -> str:
    """As in FILE: key.key."""
    file, *keys = where
    return f"{file}: {'.'.join(map(str, keys))}"


def _fits(hint: Any, value: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return isinstance(value, list)
    if origin is not None or dataclasses.is_dataclass(hint):
        return isinstance(value, dict)
    return type(value) is hint  # not isinstance: True is no int here


def _name(hint: Any) -> str:
    words = {str: "text", int: "a number", bool: "true or false", type(None): "nothing"}
    if typing.get_origin(hint) is Union:
        return " or ".join(_name(part) for part in typing.get_args(hint))
    if hint in words:
        return words[hint]
    return "a list" if typing.get_origin(hint) is tuple else "keys and values"


def _kind(value: Any) -> str:
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
    close = difflib.get_close_matches(key, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(sorted(known))}"


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]

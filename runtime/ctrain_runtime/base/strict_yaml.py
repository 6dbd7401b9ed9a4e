"""Reads YAML files strictly (a duplicate key is an error with its line), and writes lines of them.

It is apart from `config`, which also serves JSON.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import yaml

from ctrain_runtime.base.config import type_name
from ctrain_runtime.errors import ConfigError


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    items = list(node.value)
    mapping = loader.construct_mapping(node, deep=True)  # first: it rejects keys that are lists or mappings
    seen: set[Any] = set()
    for key_node, _ in items:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
        seen.add(key)
    return mapping


def _as_written(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _loader(base: Any, *, numbers_as_written: bool) -> Any:
    """A SafeLoader that rejects duplicate keys, of which it silently drops the first, and may keep numbers as they are
    written: 0.10 is not 0.1, and 1:30 is not 90."""
    loader: Any = type("StrictLoader", (base,), {})
    loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
    for kind in ("int", "float") if numbers_as_written else ():
        loader.add_constructor(f"tag:yaml.org,2002:{kind}", _as_written)
    return loader


_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML has it: start-up is measured


def _load(text: str, *, numbers_as_written: bool = False) -> Any:
    try:
        return yaml.load(text, _loader(_FAST, numbers_as_written=numbers_as_written))  # noqa: S506  # a SafeLoader
    except yaml.YAMLError:  # Python's own parser tells more of it
        return yaml.load(text, _loader(yaml.SafeLoader, numbers_as_written=numbers_as_written))  # noqa: S506  # so, too


def read(path: Path, *, numbers_as_written: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file; `numbers_as_written`: numbers stay strings. Raises ConfigError with file and line."""
    try:
        data = _load(path.read_text(encoding="utf-8"), numbers_as_written=numbers_as_written)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_line(error)}: {_problem(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    except ValueError as error:  # as for 2026-13-45, which YAML parses as a date
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must be a mapping, not {type_name(data)}")
    return data


def read_key(path: Path, key: str) -> Any:
    """The value of a key at the top of a file of ctrain's own, None if it has none; the rest is not read."""
    lines = path.read_text(encoding="utf-8").splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith(f"{key}:")), len(lines))
    more = itertools.takewhile(lambda line: line[:1] in ("", " ", "#", "-"), lines[begin + 1 :])
    data = _load("\n".join([*lines[begin : begin + 1], *more]))
    return data[key] if data else None


def key_lines(path: Path) -> dict[str, int]:
    """The line of each key at the top of a YAML file that read() accepts."""
    node = yaml.compose(path.read_text(encoding="utf-8"), _FAST)
    return {key.value: key.start_mark.line + 1 for key, _ in node.value} if node else {}


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]


def entry(key: str, value: Any, comment: str = "") -> str:
    """A line of YAML with a comment."""
    text = yaml.safe_dump({key: value}, default_flow_style=True, sort_keys=False, width=10**6).strip()[1:-1]
    return f"{text}    # {' '.join(comment.split())}" if comment else text

"""YAML files, strictly: a key given twice is an error with its place. Apart from config, which JSON needs, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ctrain_runtime.config import kind_of
from ctrain_runtime.errors import ConfigError


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
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    except ValueError as error:  # as for 2026-13-45, which YAML takes for a date
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected keys and values, found {kind_of(data)}")
    return data


def key_lines(path: Path) -> dict[str, int]:
    """The line of each key at the top of a YAML file that read() accepts."""
    node = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    return {key.value: key.start_mark.line + 1 for key, _ in node.value} if node else {}


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]

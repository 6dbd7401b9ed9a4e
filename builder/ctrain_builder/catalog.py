"""The catalog of images: definitions/images.yaml as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ctrain_builder import definition
from ctrain_builder.definition import Definition
from ctrain_runtime import config
from ctrain_runtime.errors import ConfigError, UsageError
from ctrain_runtime.store import NAME, WORD

FILE = "images.yaml"


@dataclass(frozen=True)
class Entry:
    """An image as images.yaml describes it. `tag` is the value of the base's argument `tag_argument`."""

    chain: tuple[str, ...]
    stack: str
    tag: str
    tag_argument: str
    store_name: Optional[str] = None


@dataclass(frozen=True)
class _File:
    images: dict[str, Entry]


@dataclass(frozen=True)
class ImageSpec:
    """An image: its definitions from the base upwards, and how it is called. %files are relative to `source_root`."""

    name: str
    store_name: str
    stack: str
    tag: str
    tag_argument: str
    chain: tuple[Definition, ...]
    source_root: Path

    @property
    def file_stem(self) -> str:
        return f"{self.name}_{self.tag}-{self.stack}"


def find(folder: Path, name: str, tag: str = "") -> ImageSpec:
    """The image `name` of the catalog in `folder`, at `tag` or else at its own. Raises ConfigError, UsageError."""
    entries = config.load(_File, config.read(folder / FILE), str(folder / FILE)).images
    if name not in entries:
        raise UsageError(f"{folder / FILE} has no image {name!r}", f"It has: {', '.join(sorted(entries))}")
    if tag and not WORD.fullmatch(tag):
        raise UsageError(f"{tag!r} is not a tag", "Use letters, digits, '.' and '-'")
    entry = entries[name]
    where = f"{folder / FILE}: images.{name}"
    _check_names(
        where, {"image": name, "store_name": entry.store_name or name}, {"stack": entry.stack, "tag": entry.tag}
    )
    chain = tuple(definition.read(part, folder / part / f"{part}.def") for part in entry.chain)
    _check_chain(where, chain, entry.tag_argument)
    stem = entry.store_name or name
    return ImageSpec(name, stem, entry.stack, tag or entry.tag, entry.tag_argument, chain, folder.resolve().parent)


def _check_names(where: str, names: Mapping[str, str], words: Mapping[str, str]) -> None:
    wrong = {key: value for key, value in names.items() if not NAME.fullmatch(value)}
    wrong.update({key: value for key, value in words.items() if not WORD.fullmatch(value)})
    for key, value in wrong.items():
        raise ConfigError(f"{where}: {key} {value!r} can't be part of a file name", "Use letters, digits and '-'")


def _check_chain(where: str, chain: tuple[Definition, ...], tag_argument: str) -> None:
    if not chain:
        raise ConfigError(f"{where}: chain is empty", "It starts with a base definition")
    for position, part in enumerate(chain):
        if part.is_base != (position == 0):
            rule = "only the first definition of a chain is a base; the others say `From: {{ PARENT }}`"
            raise ConfigError(f"{where}: {part.name} is at place {position + 1} of the chain, but {rule}")
        for section in ("pre", "setup"):
            if position and section in part.sections:
                raise ConfigError(
                    f"{part.path}: %{section} runs on the building machine, which a layer can't do", "Use %post"
                )
    if tag_argument not in chain[0].placeholders:
        raise ConfigError(f"{where}: tag_argument {tag_argument!r} is not used by {chain[0].path}")

"""What the values of a site file rest on: sources/NAME.yaml beside it, which only `ctrain site show --why` and
`ctrain site check` read. Apart from the site's file, because every command reads those of all sites.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from ctrain_runtime.base import config, strict_yaml
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.site.layers import Layer

FOLDER = "sources"


@dataclass(frozen=True)
class Evidence:
    """Where the values of `keys` are from, the day on which that was `read`, and how `sure` it is.

    A key, named as by `ctrain site show`, stands for all below it, too; * is any entry, as in partitions.*.cpus.
    """

    source: str
    read: datetime.date
    sure: Literal["documented", "excerpt", "user", "memory", "unverified"]
    keys: tuple[str, ...]

    def covers(self, path: str) -> bool:
        return any(fnmatchcase(path, key) or fnmatchcase(path, f"{key}.*") for key in self.keys)

    def __str__(self) -> str:
        return f"{self.sure}, {self.read}: {self.source}"


@dataclass(frozen=True)
class _File:
    sources: tuple[Evidence, ...]


def read_evidence(layer: Layer) -> tuple[Evidence, ...]:
    """What a site file's values rest on, none if nobody wrote it down.

    Raises ConfigError, also for a key that the file does not set: its evidence would be of something else.
    """
    path = Path(layer.file).parent / FOLDER / Path(layer.file).name
    try:
        if not layer.file or not path.is_file():
            return ()
    except OSError as error:  # in a directory that may not be entered
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    evidence = config.load(_File, strict_yaml.read(path), str(path)).sources
    leaves = list(leaf_paths(strict_yaml.read(Path(layer.file))))  # not of the layer: who extends the site drops keys
    for one in evidence:
        for key in one.keys:
            if not any(replace(one, keys=(key,)).covers(leaf) for leaf in leaves):
                raise ConfigError(f"{path}: {key} is not set by {layer.file}", "Correct the key, or remove it")
    return evidence


def explain(layers: Sequence[Layer], sources: Mapping[str, str]) -> dict[str, str]:
    """What the value of each key (KEY and KEY.ENTRY) rests on, by the layer that `sources` names; or ConfigError."""
    known = {layer.source: (layer.values, read_evidence(layer)) for layer in layers}
    texts = {key: _explain_key(key, *known[source]) for key, source in sources.items() if source in known}
    return {key: text for key, text in texts.items() if text}


def _explain_key(path: str, values: Mapping[str, Any], evidence: Sequence[Evidence]) -> str:
    """Of several that cover a value the last counts; where the entries of a key differ, each text names its own."""
    groups: dict[str, list[str]] = {}
    for leaf in leaf_paths(values):
        if leaf == path or leaf.startswith(f"{path}."):
            text = next((str(one) for one in reversed(evidence) if one.covers(leaf)), "")
            groups.setdefault(text, []).append(leaf[len(path) + 1 :])
    if len(groups) <= 1:
        return "".join(groups)
    return "; ".join(f"{', '.join(leaves)}: {text or 'unknown'}" for text, leaves in groups.items())


def leaf_paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The path of each value that is no mapping, as in env.NCCL_NET, without those that null resets."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaf_paths(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}"

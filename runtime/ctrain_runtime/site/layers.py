"""Settings in layers: the value of the highest layer wins, key by key, and each keeps its source. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ctrain_runtime.errors import SiteError

SIGNATURE_KEYS = ("require_signature", "trusted_keys", "layer_caches")
TRUST_KEYS = (*SIGNATURE_KEYS, "images")
# Who sets a variable, or resets it, need not know that a lower layer has it for runs on several nodes only.
_GENERAL, _SPECIAL = "env", "env_multinode"


class Level(IntEnum):
    """Where a layer comes from, lowest first."""

    BUILT_IN = 0
    INSTALLATION = 1
    SYSTEM = 2
    USER = 3
    FILE = 4  # a site file that --site or CTRAIN_SITE names by its path
    PROJECT = 5
    ENVIRONMENT = 6
    OPTION = 7


@dataclass(frozen=True)
class Layer:
    """Plain values by key. None resets a key, or an entry of a mapping, to its default.

    `source` is the name for users: a file, an environment variable or an option. `file` is its path, if it is one.
    """

    level: Level
    source: str
    values: Mapping[str, Any]
    file: str = ""


@dataclass(frozen=True)
class Merged:
    """`sources` has each key of `values`, and KEY.ENTRY for each entry of a mapping; reset keys have a source, too."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]


def merge(layers: Iterable[Layer]) -> Merged:
    """One set of values from `layers`, lowest first. Mappings merge entry by entry; every other value is replaced."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for entry in layer.values.get(_GENERAL) or ():
            values.get(_SPECIAL, {}).pop(entry, None)
            sources.pop(f"{_SPECIAL}.{entry}", None)
        for key, value in layer.values.items():
            sources[key] = layer.source
            if isinstance(value, Mapping):
                values[key] = _merge_entries(key, values.get(key, {}), value, sources)
            elif value is None:
                for entry in values.pop(key, None) or ():
                    sources.pop(f"{key}.{entry}", None)
            else:
                values[key] = value
    return Merged(values, sources)


def _merge_entries(
    key: str, below: Mapping[str, Any], above: Mapping[str, Any], sources: dict[str, str]
) -> dict[str, Any]:
    """The entries of a mapping; `sources` already names the layer that `above` comes from."""
    for entry, value in above.items():
        if value is None:
            sources.pop(f"{key}.{entry}", None)
        else:
            sources[f"{key}.{entry}"] = sources[key]
    return {entry: value for entry, value in {**below, **above}.items() if value is not None}


def check_trust_keys(layers: Sequence[Layer]) -> None:
    """Raise SiteError if higher layers change the trust that built-in and system files demand by themselves.

    Not by order: a user's layer of a parent lies below the system's layer of the site that extends it.
    """
    system = merge(layer for layer in layers if layer.level <= Level.SYSTEM)
    demands = {}
    if system.values.get("require_signature"):
        demands = dict.fromkeys(SIGNATURE_KEYS, f"{system.sources['require_signature']} requires signatures")
    if system.values.get("images") == "store":
        demands["images"] = f"{system.sources['images']} allows only images of stores"
    for layer in layers:
        changed = [key for key in demands if key in layer.values]
        if layer.level > Level.SYSTEM and changed:
            raise SiteError(f"{layer.source}: {changed[0]} cannot be changed: {demands[changed[0]]}", "Remove the key")

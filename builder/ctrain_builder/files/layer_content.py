"""What a layer is, wherever it lies: in a cache, or in a registry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerContent:
    """What is in a layer: digest and size (bytes) of its partition, and when it was built (UTC; "" if unknown).

    Two layers of one key can differ, if packages that a definition installs have changed in between. `origin`: the
    repository that it was downloaded from. `private`: its %post could read passwords of the build host.
    """

    digest: str
    size: int
    built: str = ""
    origin: str = ""
    private: bool = False

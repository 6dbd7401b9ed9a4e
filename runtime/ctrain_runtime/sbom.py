"""Which packages an image holds: read from the package list (SBOM, CycloneDX JSON) in its SIF file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ctrain_runtime import sif
from ctrain_runtime.errors import ImageUnusable

_KIND = re.compile(r"pkg:([a-z]+)/")  # of a package URL, as in pkg:pypi/torch@2.13.0


def packages(path: Path) -> dict[tuple[str, str], str]:
    """(kind, name) -> version of every package; the kind is that of package URLs: pypi, deb.

    Raises ImageUnusable when the image has no package list.
    """
    content = sif.object_bytes(path, sif.SBOM)
    if content is None:
        raise ImageUnusable(f"{path} has no package list: an older ctrain made it", "Build and publish it again")
    try:
        parts = json.loads(content).get("components", ())  # left out where there are none
        found = ((_KIND.match(part["purl"]), part["name"], part["version"]) for part in parts)
        return {
            (kind[1], f"{name:s}"): f"{version:s}" for kind, name, version in found if kind
        }  # ":s": a string, or else
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ImageUnusable(f"{path} has a damaged package list", "Build and publish it again") from error

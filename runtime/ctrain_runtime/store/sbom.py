"""Reads the package list (SBOM, CycloneDX JSON) in an image's SIF file."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ctrain_runtime.errors import ImageUnusable
from ctrain_runtime.store import sif

_KIND = re.compile(r"pkg:([a-z]+)/")  # of a package URL, as in pkg:pypi/torch@2.13.0


class NoPackageList(ImageUnusable):
    """An image without a list of its packages."""


def packages(path: Path) -> dict[tuple[str, str], str]:
    """(type, name) -> version of every package; types are those of package URLs: pypi, deb.

    Raises NoPackageList if there is no list; ImageUnusable if it cannot be read.
    """
    content = sif.object_bytes(path, sif.SBOM)
    if content is None:
        raise NoPackageList(f"{path} has no package list (built by an older ctrain)", "Rebuild and publish it")
    try:
        components = json.loads(content).get("components", ())  # omitted if there are none
        rows = ((_KIND.match(item["purl"]), item["name"], item["version"]) for item in components)
        # ":s" raises ValueError or TypeError for anything but a string
        return {(kind[1], f"{name:s}"): f"{version:s}" for kind, name, version in rows if kind}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ImageUnusable(f"{path} has a damaged package list", "Rebuild and publish it") from error

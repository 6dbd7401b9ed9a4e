"""The packages of an image: those of dpkg, and those that Python finds."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

STATUS = Path("/var/lib/dpkg/status")
RELEASE = Path("/etc/os-release")


def system() -> dict[str, str]:
    """ID and VERSION_CODENAME of the distribution."""
    text = RELEASE.read_text(encoding="utf-8", errors="replace") if RELEASE.exists() else ""
    return dict(re.findall(r'(?m)^(ID|VERSION_CODENAME)="?([^"\n]*)', text))


def python() -> dict[str, str]:
    """Normalised name -> version; of two versions the one that is imported."""
    found: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name and distribution.version:  # what a removed package left behind has neither
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return found


def dpkg() -> list[dict[str, str]]:
    """The installed packages of a Debian or Ubuntu; none elsewhere."""
    text = STATUS.read_text(encoding="utf-8", errors="replace") if STATUS.exists() else ""
    packages = (dict(re.findall(r"(?m)^(\w+): (.*)$", part)) for part in text.split("\n\n"))
    wanted = ("Package", "Version", "Architecture")
    return [
        {field.lower(): package[field] for field in wanted}
        for package in packages
        if package.get("Status", "").endswith(" installed")
    ]

"""The packages of an image: those of dpkg, and those that Python finds."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distributions
from pathlib import Path

STATUS = Path("/var/lib/dpkg/status")
RELEASE = Path("/etc/os-release")
DOCUMENTS = Path("/usr/share/doc")
LONGEST = 80  # characters of a licence's name; longer ones are the text of a licence


def everything() -> dict[str, object]:
    return {"system": system(), "deb": dpkg(), "pypi": python(), "licenses": licenses()}


def system() -> dict[str, str]:
    """ID and VERSION_CODENAME of the distribution."""
    text = RELEASE.read_text(encoding="utf-8", errors="replace") if RELEASE.exists() else ""
    return dict(re.findall(r'(?m)^(ID|VERSION_CODENAME)="?([^"\n]*)', text))


def python() -> dict[str, str]:
    """Normalised name -> version; of two versions the one that is imported."""
    return {name: distribution.version for name, distribution in _imported().items()}


def licenses() -> dict[str, dict[str, list[str]]]:
    """Kind -> package -> its licences, as its metadata or Debian's copyright file names them."""
    return {
        "pypi": {name: _of_metadata(distribution) for name, distribution in _imported().items()},
        "deb": {package["package"]: _of_copyright(DOCUMENTS / package["package"]) for package in dpkg()},
    }


def _imported() -> dict[str, Distribution]:
    by_name: dict[str, Distribution] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name and distribution.version:  # what a removed package left behind has neither
            by_name.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution)
    return by_name


def _of_metadata(distribution: Distribution) -> list[str]:
    """An expression of SPDX, if it has one; else what its author wrote, or chose of PyPI's list."""
    metadata = distribution.metadata
    for stated in (metadata[key] for key in ("License-Expression", "License") if key in metadata):
        if stated and len(stated) <= LONGEST and "\n" not in stated and stated != "UNKNOWN":
            return [stated]
    chosen = [line.split(" :: ") for line in metadata.get_all("Classifier", [])]
    return [words[-1] for words in chosen if words[0] == "License" and words[-1] != "OSI Approved"]


def _of_copyright(folder: Path) -> list[str]:
    """The names in a copyright file that a program can read (DEP 5)."""
    path = folder / "copyright"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    names = re.findall(r"(?m)^License:[ \t]*(\S.*?)\s*$", text) if text.startswith("Format:") else []
    return sorted({name for name in names if len(name) <= LONGEST})


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

"""uv.lock as a requirements file: what the project needs, in the locked versions, under the lock's conditions."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Optional

from ctrain_builder.imports.findings import Finding
from ctrain_builder.imports.packages import Requirements, image_has, is_images_own
from ctrain_runtime.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Package = Mapping[str, Any]
Conditions = frozenset[str]  # markers that all hold


def of_lock(text: str, where: str) -> Requirements:
    """Groups for development and the project's own extras stay out, as in `uv sync --no-dev`. Raises ConfigError."""
    try:
        packages = tomllib.loads(text)["package"]
        roots = [package for package in packages if _is_root(package)]
        needed = _needed(packages, roots)
        lines = [_requirement(package, ways, text) for package, ways in needed]
        registries = Counter(package["source"].get("registry") for package, _ in needed)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not a TOML file: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{where} is not a lock of uv: {error!r}", "Make one with: uv lock") from error
    if not roots:
        raise ConfigError(f"{where} has no project", "Name the uv.lock of a project")
    usual = registries.most_common(1)[0][0] if registries else None
    findings = [finding for line, finding in lines if finding]
    findings += [
        _other_index(package, text) for package, _ in needed if package["source"].get("registry") not in (usual, None)
    ]
    return Requirements(tuple(line for line, _ in lines if line), tuple(sorted(findings, key=lambda one: one.line)))


def _is_root(package: Package) -> bool:
    source = package["source"]
    return "." in (source.get("virtual"), source.get("editable"))


def _needed(packages: list[Package], roots: list[Package]) -> list[tuple[Package, list[Conditions]]]:
    """The packages below the roots, each with the ways on which it is needed. Nothing below the image's own counts."""
    needed: dict[int, list[Conditions]] = {}
    seen: dict[tuple[int, str], list[Conditions]] = {}  # by package and extra
    waiting = [(root, "", frozenset[str]()) for root in roots]
    while waiting:
        package, extra, conditions = waiting.pop()
        ways = seen.setdefault((id(package), extra), [])
        if any(way <= conditions for way in ways):
            continue
        ways.append(conditions)
        if not _is_root(package):
            needed.setdefault(id(package), []).append(conditions)
        if is_images_own(package["name"]):
            continue
        listed = package.get("optional-dependencies", {}).get(extra, []) if extra else package.get("dependencies", [])
        for dependency in listed:
            more = conditions | ({dependency["marker"]} if "marker" in dependency else set())
            below = _package(packages, dependency)
            waiting += [(below, name, more) for name in ("", *dependency.get("extra", []))]
    return [(package, needed[id(package)]) for package in packages if id(package) in needed]


def _package(packages: list[Package], dependency: Package) -> Package:
    """The package that a dependency names: its version is given where there are several."""
    for package in packages:
        if package["name"] == dependency["name"] and dependency.get("version") in (None, package.get("version")):
            return package
    raise KeyError(dependency["name"])


def _requirement(package: Package, ways: list[Conditions], text: str) -> tuple[str, Optional[Finding]]:
    """The line of a package, and what is to be told of it."""
    name, source = str(package["name"]), package["source"]
    if is_images_own(name):
        return "", image_has(f"{name} {package.get('version', '')}".strip(), _line(text, name))
    marker = _marker(ways)
    if "registry" in source:
        return f"{name}=={package['version']}{marker}", None
    if "git" in source:
        address, _, revision = str(source["git"]).partition("#")
        return f"{name} @ git+{address.partition('?')[0]}@{revision}{marker}", None
    if "url" in source:
        return f"{name} @ {source['url']}{marker}", None
    todo = "Build a wheel of it, name it in the requirements, and give it to the build by --with"
    return "", Finding(_line(text, name), name, "it is a directory or file of the project", todo)


def _marker(ways: list[Conditions]) -> str:
    if any(not way for way in ways):
        return ""
    alternatives = [" and ".join(f"({one})" for one in sorted(way)) for way in ways]
    joined = alternatives[0] if len(alternatives) == 1 else " or ".join(f"({one})" for one in sorted(alternatives))
    return f" ; {joined}"


def _other_index(package: Package, text: str) -> Finding:
    name = str(package["name"])
    why = f"it comes from {package['source']['registry']}, not from the other packages' index"
    return Finding(_line(text, name), name, why, "Check that pip's index on the build host has it")


def _line(text: str, name: str) -> int:
    match = re.search(rf'(?m)^name = "{re.escape(name)}"$', text)
    return text.count("\n", 0, match.start()) + 1 if match else 1

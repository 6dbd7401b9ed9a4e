"""The Python packages of a layer: pins are added to what the image has; that is raised only where one of them needs it.

Runs in the image while a layer is built, by functions of python_layer.sh, on its Python (3.8 or later). Commands:

    has REQUIREMENT...                              exit code 0, or 10 if the image has not
    allows REQUIREMENT...                           0, or 10 if its constraint file keeps it from them
    pin NAME==VERSION                               prints what pip may install: it, or the constraint file's choice
    install [--for DIRECTORY] [--without NAME]... NAME==VERSION...
"""

import argparse
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

NO = 10  # Python itself ends with 1 and 2


class Problem(Exception):
    pass


class Package(NamedTuple):
    name: str
    version: Optional[Version]  # None: what stands at `path` does not say
    requires: Sequence[str]
    path: str


class Fault(NamedTuple):
    """A package that lacks what it requires: `needed` is absent, or of another version."""

    who: str
    requirement: Requirement
    needed: str

    def __str__(self) -> str:
        marked = Requirement(str(self.requirement))
        marked.marker = None
        return f"{self.who} needs {marked}"


Packages = Dict[str, Package]  # by normalised name; of two, the one that is imported
Pins = Dict[str, Requirement]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read(distribution: Distribution) -> Package:
    path = str(getattr(distribution, "_path", "?"))  # no public name exists for it
    metadata = distribution.metadata
    text = metadata["Version"] if metadata else None
    name = (metadata["Name"] if metadata else None) or re.split(r"-\d|\.(?:egg|dist)-info$", Path(path).name)[0]
    try:
        version = Version(text) if text else None
    except InvalidVersion:
        version = None
    return Package(name, version, distribution.requires or (), path)


def find(source: Sequence[str] = ()) -> Packages:
    """The image's packages, and one whose source is in the directory `source`."""
    found: Packages = {}
    for distribution in distributions(path=[*source, *sys.path[1:]]):  # without the directory of this file
        package = read(distribution)
        found.setdefault(normal(package.name), package)
    return found


def version_of(packages: Packages, name: str) -> Optional[Version]:
    package = packages.get(name)
    if package and not package.version:
        raise Problem(f"{package.path} names no version of {package.name}: remove it from the image, in a layer below")
    return package.version if package else None


def constraints() -> Dict[str, List[Requirement]]:
    """By normalised name: the lines of the files that PIP_CONSTRAINT names."""
    held: Dict[str, List[Requirement]] = {}
    for file in filter(os.path.isfile, os.environ.get("PIP_CONSTRAINT", "").split()):
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            try:
                requirement = Requirement(re.sub(r"(^|\s)#.*", "", line).strip())
            except InvalidRequirement:
                continue  # an option or an empty line; pip reads the file, too, and reports what it cannot
            if applies(requirement, ()):
                held.setdefault(normal(requirement.name), []).append(requirement)
    return held


def applies(requirement: Requirement, extras: Sequence[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def meets(requirement: Requirement, version: Optional[Version]) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def pinned(requirement: Requirement) -> Optional[Version]:
    versions = [part.version for part in requirement.specifier if part.operator in ("==", "===")]
    return Version(versions[0]) if versions and not versions[0].endswith("*") else None


def allowed(pin: Requirement) -> bool:
    return all(meets(held, pinned(pin)) for held in constraints().get(normal(pin.name), ()))


def has(text: str) -> bool:
    requirement = Requirement(text)
    name = normal(requirement.name)
    return meets(requirement, Version(platform.python_version()) if name == "python" else version_of(find(), name))


def allows(text: str) -> bool:
    """Whether the image has it, or its constraint file does not keep pip from installing it."""
    requirement = Requirement(text)
    versions = [pinned(held) for held in constraints().get(normal(requirement.name), ())]
    return has(text) or all(version is None or meets(requirement, version) for version in versions)


def choice(pin: Requirement) -> str:
    """What pip is asked for: the pin, or the name alone where the constraint file has another version."""
    return f"{pin.name}{pin.specifier}" if allowed(pin) else pin.name


def faults(packages: Packages, pins: Pins) -> Iterator[Fault]:
    """What the packages lack of what they require, and those of `pins` of what their extras require."""
    for name, package in packages.items():
        extras = sorted(pins[name].extras) if name in pins else ()
        for text in package.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue  # of a time before the format had rules
            needed = normal(requirement.name)
            if applies(requirement, extras) and not (
                needed in packages and meets(requirement, packages[needed].version)
            ):
                yield Fault(f"{package.name} {package.version}", requirement, needed)


def pip_install(pins: Sequence[Requirement]) -> None:
    if pins:
        argv = [sys.executable, "-m", "pip", "install", "--no-deps", *map(choice, pins)]
        if subprocess.run(argv).returncode:
            raise Problem(f"pip could not install {' '.join(map(choice, pins))}")


def refusal(fault: Fault, packages: Packages, pin: Optional[Requirement], raised: Dict[str, str]) -> str:
    """Why nothing can be done about a fault, in a line."""
    version = version_of(packages, fault.needed)
    if fault.needed in raised:
        return f"{fault}, but {raised[fault.needed]}, so it was raised to {version}; choose other versions"
    where = f"the image has {fault.needed} {version}" if version else f"the image has no {fault.needed}"
    held = constraints().get(fault.needed, ())
    if held:
        kept = f"its constraint file ({os.environ['PIP_CONSTRAINT']}) says {held[0]}"
        return f"{fault}; {where}, and {kept}: choose a {fault.who.split()[0]} that works with it"
    return f"{fault}; {where}, and the definition {f'pins {pin}' if pin else 'does not pin it'}: change the definition"


def install(pins: Pins, without: Sequence[str], source: Sequence[str]) -> None:
    """Install what is missing of the pins; then raise what the image has to the pin where something new needs it.

    What the image's own packages lack from the start is its maker's business. Raises Problem for the rest.
    """
    present = find()
    for name in pins:
        version_of(present, name)
    before = {str(fault) for fault in faults(present, pins)}
    pip_install([pin for name, pin in pins.items() if name not in present])
    raised: Dict[str, str] = {}
    while True:
        packages = find(source)
        new = [fault for fault in faults(packages, pins) if str(fault) not in before and fault.needed not in without]
        for fault in new:
            version_of(packages, fault.needed)
            pin = pins.get(fault.needed)
            if not pin or fault.needed in raised or not allowed(pin) or not meets(fault.requirement, pinned(pin)):
                raise Problem(refusal(fault, packages, pin, raised))
        if not new:
            return
        pip_install([pins[name] for name in dict.fromkeys(fault.needed for fault in new)])
        raised.update({fault.needed: str(fault) for fault in new})


def options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["has", "allows", "pin", "install"])
    parser.add_argument("requirements", nargs="+")
    parser.add_argument("--for", dest="source", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    return parser.parse_args(argv)


def main() -> int:
    given = options(sys.argv[1:])
    if given.command == "has":
        return 0 if all(map(has, given.requirements)) else NO
    if given.command == "allows":
        return 0 if all(map(allows, given.requirements)) else NO
    pins = [Requirement(text) for text in given.requirements]
    if given.command == "pin":
        print(*map(choice, pins), sep="\n")
    else:
        install({normal(pin.name): pin for pin in pins}, [normal(name) for name in given.without], given.source)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        sys.exit(f"Python packages: {problem}")

"""What must be equal for the result of a test, or of a program that examined an image, to hold for another image.

A fingerprint covers all that a program inside can see: the contents of the layers, the program, the engine with its
configuration, the kernel and the processor; never where on this machine any of them is. Layers above those on which it
depends by its declaration are left out only if they are proven to be private: all that they add lies in new directories
of /opt.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Optional

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.definitions import files
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.layers import metadata
from ctrain_builder.layers.container import NO_MOUNTS, Container, LowerLayers
from ctrain_builder.plan.build_plan import PlannedLayer
from ctrain_runtime import payload
from ctrain_runtime.base import command
from ctrain_runtime.engines.apptainer import Engine

INSIDE = Path(__file__).parents[1] / "inside"  # programs that run inside an image
VERSIONS = payload.FOLDER / "versions.py"  # the module that they share with the runtime
_FORMAT = 2  # of fingerprints: raise it when programs are run in another way
_ENTRY = re.compile(r"(?P<mode>\S{10}) root/root +\d+ \S+ \S+ squashfs-root(?P<path>/.*)?")
_SHORT = 12  # hex digits
_IMPORT = re.compile(r"(?m)^\s*(?:import|from) (\w+)")
_OWN = re.compile(r"/opt/([\w.+-]+)(/.*)?")
_DIRECTORY = "drwxr-xr-x"
# Written for every layer; none of it takes part in what runs in the container, as /.singularity.d/env does.
_METADATA = re.compile(
    rf"/{re.escape(metadata.DIRECTORY)}/"
    rf"({metadata.MARKER}|Singularity|labels\.json|runscript|startscript|test|runscript\.help"
    r"|bootstrap_history|bootstrap_history/Apptainer\d+)"
)
_EXISTING = f"""\
for name; do
    case $name in
        /opt/*) if [ -e "$name" ] || [ -L "$name" ]; then echo "$name"; fi ;;
        *) if [ ! -L "$name" ] && [ "$(stat -c %A "$name" 2>/dev/null)" = {_DIRECTORY} ]; then echo "$name"; fi ;;
    esac
done
"""


def fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *parts], sort_keys=True).encode()).hexdigest()


def surroundings(container: Container) -> tuple[str, ...]:
    """All besides the image and the program that the program sees, and that is not the same for every run."""
    options = container.argv("exec", Path("image"))[1:]
    no_mounts = files.digest(NO_MOUNTS)
    options = [option.replace(str(NO_MOUNTS), no_mounts) for option in options]
    return (*options, engine_name(container.engine), *_machine())


@functools.lru_cache
def engine_name(engine: Engine) -> str:
    """As in apptainer 1.4.5 0123456789ab: the last word is of its configuration, which says what of the host is
    mounted."""
    settings = command.run([engine.path, "buildcfg"], check=False).stdout
    path = re.search(r"(?m)^\w+_CONF_FILE=(.+)$", settings)
    configuration = ""
    with contextlib.suppress(OSError):  # none, or not for this user
        configuration = files.digest(Path(path[1]))[:_SHORT] if path else ""
    return f"{engine.name} {engine.version} {configuration}".rstrip()


@functools.lru_cache
def _machine() -> tuple[str, ...]:
    about = Path("/proc/cpuinfo")
    lines = set(re.findall(r"(?m)^(?:flags|model name|Features).*$", about.read_text()))
    return platform.release(), *sorted(lines)


def programs(text: str) -> list[str]:
    """Those of ctrain's programs inside an image that `text` names, and the modules that they import, by contents."""
    known = {path.name: path for path in (*INSIDE.glob("*.py"), VERSIONS)}
    used: set[str] = set()
    due = {name for name in known if name in text}
    while due - used:
        name = (due - used).pop()
        used.add(name)
        imported = _IMPORT.findall(known[name].read_text(encoding="utf-8"))
        due |= {f"{module}.py" for module in imported} & known.keys()
    return [f"{name} {files.digest(known[name])}" for name in sorted(used)]


def copy_programs(mnt_dir: Path) -> None:
    """Create `mnt_dir` with the programs that run inside an image, to be mounted at /mnt."""
    shutil.copytree(INSIDE, mnt_dir, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(VERSIONS, mnt_dir)


@dataclass(frozen=True)
class Stack:
    """The layers of an image, from the base upwards: their files, and what is in them."""

    files: tuple[Path, ...]
    contents: tuple[LayerContent, ...]

    def below(self, count: int) -> LowerLayers:
        """The lowest `count` of them."""
        return LowerLayers(self.files[0], self.files[1:count])

    def digests(self, count: int) -> list[str]:
        """Of the lowest `count` of them."""
        return [content.digest for content in self.contents[:count]]


def cached_stack(cache: Cache, layers: Iterable[PlannedLayer]) -> Stack:
    """Planned layers, from the base upwards, as the cache has them."""
    places = [(layer.key, layer.definition.is_base) for layer in layers]
    contents = (cache.layers.content(*place) for place in places)
    return Stack(tuple(cache.layers.path(*place) for place in places), tuple(contents))


def needed_layers(cache: Cache, container: Container, stack: Stack, since: int) -> int:
    """How many layers, from the base upwards, matter to a program that depends on those up to number `since`: all up to
    the highest that is not private."""
    count = len(stack.files)
    while count > since + 1 and _is_private(cache, container, stack, count - 1):
        count -= 1
    return count


def _is_private(cache: Cache, container: Container, stack: Stack, number: int) -> bool:
    """Whether a layer only adds new directories of /opt to those below it: what runs without naming them cannot
    depend on it. False where that cannot be told."""
    names = _names_to_check(stack.files[number], stack.contents[number].digest)
    if names is None:
        return False

    def compare() -> dict[str, bool]:
        below = stack.below(number)
        argv = container.argv("exec", below.base, overlays=below.overlays)
        existing = container.output([*argv, "/bin/sh", "-c", _EXISTING, "sh", *names]).splitlines()
        return {"private": existing == [name for name in names if not name.startswith("/opt/")]}

    return bool(cache.memory.fact_or(fingerprint("private", stack.digests(number), names), compare)["private"])


@functools.lru_cache
def _names_to_check(layer: Path, _digest: str) -> Optional[tuple[str, ...]]:
    """The directories of /opt that a layer adds, which must not exist below it, and its other directories, which must;
    None for a layer that has more. Each test asks; the answer holds for the layer's digest."""
    unsquashfs = command.which("unsquashfs")
    listing = command.run([unsquashfs, "-ll", str(layer)], check=False, timeout=600) if unsquashfs else None
    if not listing or listing.code:
        return None
    names: dict[str, None] = {}
    # Some versions say more before the root directory.
    for line in dropwhile(lambda line: not line.endswith(" squashfs-root"), listing.stdout.splitlines()):
        entry = _ENTRY.fullmatch(line)
        if not entry:
            return None
        path = entry["path"] or "/"
        own = _OWN.fullmatch(path)
        if own:
            names[f"/opt/{own[1]}"] = None
        elif _METADATA.fullmatch(path):
            continue
        elif entry["mode"] == _DIRECTORY:
            names[path] = None
        else:
            return None
    return tuple(names) or None

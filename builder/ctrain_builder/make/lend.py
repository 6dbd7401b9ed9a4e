"""Programs of this machine that run inside a container, with their libraries: the image need not have them.

So mksquashfs runs in a user namespace, where it sees what the builder of a layer saw: files that an ordinary user can't
read from outside, owners, capabilities; and the whole file system of an image, layers and all.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ctrain_builder.make.container import Container
from ctrain_runtime import command
from ctrain_runtime.errors import BuildError

INSIDE = "/.ctrain"  # where the container sees the work folder
_TOOLS = "tools"
_THREADS = "libgcc_s.so.1"  # the C library loads it when a thread ends; ldd doesn't know


def find(name: str, package: str) -> str:
    """The path of a program, which `package` brings. Raises BuildError."""
    path = command.which(name)
    if not path:
        raise BuildError(f"{name} is not on PATH", f"Install {package}")
    return path


def seen(container: Container, path: Path) -> str:
    """The name of a file of the work folder, inside."""
    return f"{INSIDE}/{path.relative_to(container.work)}"


def exec_argv(container: Container, image: Path, overlays: Sequence[str] = ()) -> list[str]:
    """The command that runs another one as root of a container that sees the work folder."""
    return container.argv("exec", image, overlays=overlays, binds=[f"{container.work}:{INSIDE}"], as_root=True)


def argv(program: str) -> list[str]:
    """The start of the command that runs `program` (a path) inside, once it is lent."""
    folder, path = f"{INSIDE}/{_TOOLS}", f"{INSIDE}/{_TOOLS}/{Path(program).name}"
    loader = next((library.name for library in _libraries(program) if library.name.startswith("ld")), None)
    return [f"{folder}/{loader}", "--library-path", folder, path] if loader else [path]


def lend(container: Container, program: str) -> None:
    """Put `program` and its libraries where the container sees them."""
    folder = container.work / _TOOLS
    folder.mkdir(exist_ok=True)
    for path in (Path(program), *_libraries(program)):
        shutil.copy(path, folder)


def _libraries(program: str) -> list[Path]:
    """The libraries that a program loads, the loader among them; none if it is linked statically."""
    said = command.run(["ldd", program], check=False).stdout
    found = [Path(word) for word in re.findall(r"(/\S+) \(0x", said)]
    threads = [path.with_name(_THREADS) for path in found if path.name.startswith("libc.so")]
    return [*found, *(path for path in threads if path.exists())]

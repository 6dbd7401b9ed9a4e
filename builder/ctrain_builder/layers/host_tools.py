"""Programs of this machine that run inside a container, with their libraries: the image need not have them.

So mksquashfs runs in a user namespace, where it sees what the builder of a layer saw: files that an ordinary user can't
read from outside, owners, capabilities; and the whole file system of an image, layers and all.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ctrain_builder.layers.container import Container
from ctrain_runtime.base import command
from ctrain_runtime.errors import BuildError

INSIDE = "/.ctrain"  # where the container sees the directory of the programs and their files
ROOT = "root"  # in it: a mount point for what they read
_TOOLS = "tools"
_THREADS = "libgcc_s.so.1"  # the C library loads it when a thread ends; ldd doesn't know


def require_tool(name: str, package: str) -> str:
    """The path of a program, which `package` brings. Raises BuildError."""
    path = command.which(name)
    if not path:
        raise BuildError(f"{name} is not on PATH", f"Install {package}")
    return path


def directory(container: Container) -> Path:
    """Where the programs and their files are. Not the work directory, so that an image can't write there."""
    return container.work / "lend"


def prepare(container: Container) -> Path:
    """Make that directory."""
    (directory(container) / ROOT).mkdir(parents=True)
    return directory(container)


def exec_argv(container: Container, image: Path, overlays: Sequence[str] = (), binds: Sequence[str] = ()) -> list[str]:
    """The command that runs another one as root of a container that sees that directory."""
    own = f"{directory(container)}:{INSIDE}"
    return container.argv("exec", image, overlays=overlays, binds=[own, *binds], as_root=True)


def argv(program: str) -> list[str]:
    """The start of the command that runs `program` (a path) inside, once it is bound."""
    directory, path = f"{INSIDE}/{_TOOLS}", f"{INSIDE}/{_TOOLS}/{Path(program).name}"
    loader = next((library.name for library in _libraries(program) if library.name.startswith("ld")), None)
    return [f"{directory}/{loader}", "--library-path", directory, path] if loader else [path]


def copy_tool(container: Container, program: str) -> None:
    """Put `program` and its libraries where the container sees them."""
    tools = directory(container) / _TOOLS
    tools.mkdir()
    for path in (Path(program), *_libraries(program)):
        shutil.copy(path, tools)


def _libraries(program: str) -> list[Path]:
    """The libraries that a program loads, the loader among them; none if it is linked statically."""
    libraries = command.run(["ldd", program], check=False).stdout
    paths = [Path(word) for word in re.findall(r"(/\S+) \(0x", libraries)]
    threads = [path.with_name(_THREADS) for path in paths if path.name.startswith("libc.so")]
    return [*paths, *(path for path in threads if path.exists())]

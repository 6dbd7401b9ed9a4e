"""What a container shows of its image: every file, as the kernel tells of it. Needs root."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# The parent's name, the time of the build, the layer's key
_TOLD = tuple(f"/.singularity.d/{name}" for name in ("Singularity", "bootstrap_history", "labels.json", "ctrain-layer"))
_MARKS = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.")  # of the container's own overlay


@dataclass(frozen=True)
class Entry:
    """`content` is the digest of a file, the target of a link or the number of a device; `names` are those that a file
    with several has. Of a .pyc the first 16 bytes don't count: they tell of the source's time or of its content.
    """

    kind: str
    mode: str
    content: str
    attributes: tuple[tuple[str, bytes], ...]
    names: tuple[str, ...]


def differences(left: dict[str, Entry], right: dict[str, Entry]) -> list[str]:
    """What differs between two trees, but for that which tells of the build (docs/layers.md)."""
    paths = sorted(path for path in left.keys() | right.keys() if not path.startswith(_TOLD))
    return [f"{path!r}: {left.get(path)} {right.get(path)}" for path in paths if left.get(path) != right.get(path)]


def seen(image: Path, overlays: Sequence[str] = ()) -> dict[str, Entry]:
    """Path -> Entry for all of an image's file system; what is mounted from the machine is left out."""
    with _container(image, overlays) as pid:
        root = f"/proc/{pid}/root"
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        mounted = {line.split()[4] for line in lines}
        paths = [path for path in _walk(root, mounted) if path != "/"]
        groups: dict[tuple[int, int], list[str]] = {}
        for path in paths:
            found = os.lstat(root + path)
            if stat.S_ISREG(found.st_mode):
                groups.setdefault((found.st_dev, found.st_ino), []).append(path)
        names = {path: tuple(sorted(group)) for group in groups.values() if len(group) > 1 for path in group}
        return {path: _entry(root + path, names.get(path, ())) for path in paths}


@contextlib.contextmanager
def _container(image: Path, overlays: Sequence[str]) -> Iterator[int]:
    argv = ["apptainer", "--quiet", "exec", "--userns", "--no-mount", "home,cwd,tmp"]
    argv += [word for overlay in overlays for word in ("--overlay", overlay)]
    argv += [str(image), "/bin/sh", "-c", "echo $$; read x"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdin and process.stdout
        yield int(process.stdout.readline())
        process.stdin.close()


def _walk(root: str, mounted: set[str]) -> Iterator[str]:
    """All paths, those of mounts excepted; they begin with /."""
    for folder, folders, files in os.walk(root, onerror=_raise):
        inside = folder[len(root) :]
        folders[:] = [name for name in folders if f"{inside}/{name}" not in mounted]
        yield from (f"{inside}/{name}" for name in (*folders, *files) if f"{inside}/{name}" not in mounted)


def _raise(error: OSError) -> None:
    raise error


def _entry(path: str, names: tuple[str, ...]) -> Entry:
    found = os.lstat(path)
    content = ""
    if stat.S_ISLNK(found.st_mode):
        content = str(Path(path).readlink())
    elif stat.S_ISREG(found.st_mode):
        content = hashlib.sha256(Path(path).read_bytes()[16 if path.endswith(".pyc") else 0 :]).hexdigest()
    elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        content = str(found.st_rdev)
    listed = sorted(os.listxattr(path, follow_symlinks=False))
    attributes = tuple((name, _attribute(path, name)) for name in listed if not name.startswith(_MARKS))
    kind, mode = stat.filemode(found.st_mode)[0], oct(stat.S_IMODE(found.st_mode))
    return Entry(kind, mode, content, attributes, names)


def _attribute(path: str, name: str) -> bytes:
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError:  # capabilities are listed, but not told in a user namespace
        return b""

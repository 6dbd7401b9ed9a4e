"""Trees as a hostile definition, layer or project would leave them, and a host that must stay as it is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

SECRET = "a-secret-of-the-host"
KINDS = ("file", "directory", "link", "link to directory", "link up", "dangling", "hard link", "fifo", "device")


def make_host(root: Path) -> Path:
    """Files of somebody else, beside which trees are made. Their content would pass for labels, too."""
    for name in ("key", "folder/labels.json", "folder/runscript", "folder/key"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f'{{"label": "{SECRET}"}}')
        (root / name).chmod(0o640)
    return root


def digest(root: Path) -> str:
    """Changes with all that lies below a folder: names, types, owners, modes, contents, attributes and times."""
    sha = hashlib.sha256()
    for path in (root, *sorted(root.rglob("*"))):
        found = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
        times = found.st_mtime_ns, found.st_ctime_ns, found.st_uid, found.st_gid, found.st_nlink
        marks = os.listxattr(path, follow_symlinks=False)
        sha.update(repr((str(path), found.st_mode, times, marks, content)).encode())
    return sha.hexdigest()


def fill(root: Path, kinds: Mapping[str, str], host: Path) -> None:
    """Make names -> kinds below `root`; a name below one that is no directory is left out."""
    (root / "other").write_text("another file of the tree")
    up = "../" * 20
    for name, kind in sorted(kinds.items()):
        path = root / name
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            if any(above.is_symlink() for above in path.parents if above.is_relative_to(root)):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                path.write_text("{}")
            elif kind == "directory":
                path.mkdir()
            elif kind == "hard link":
                os.link(root / "other", path)  # Path.hardlink_to is too new
            elif kind == "fifo":
                os.mkfifo(path)
            elif kind == "device":
                with contextlib.suppress(PermissionError):  # not root: none can be made, here or in %post
                    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
            else:
                target = {"link to directory": host / "folder", "dangling": host / "new"}.get(kind, host / "key")
                path.symlink_to(f"{up}{str(target)[1:]}" if kind == "link up" else target)

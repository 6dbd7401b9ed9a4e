"""Runs in %post: changes a tree as told by lines of JSON. It does the same on the same tree, whatever holds it.

Steps are left out where overlays, or fuse-overlayfs 1.10, do not what a disk does (docs/layers.md). A file with several
names from the layers below has one of them changed, or some removed; it isn't moved or linked again. A file with set-id
bits is neither changed nor moved, nor is a FIFO. A folder that was removed and made again stays as it is, and no folder
is made under a name that was removed before.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

TOP = Path("/trees")
LINKED: dict = {}  # path -> all names that the file had when the script began
CHANGED: set = set()  # those whose file was changed
PARTED: set = set()  # those whose file has lost a name
AGAIN: set = set()  # folders that were removed and made again
REMOVED: set = set()


def is_file(path):
    return path.is_file() and not path.is_symlink() and not path.stat().st_mode & 0o6000


def is_folder(path):
    return path.is_dir() and not path.is_symlink()


def is_place(path):
    return is_folder(path.parent) and not AGAIN.intersection(path.parents)


def is_free(path):
    return is_place(path) and not os.path.lexists(path)


def inside(paths, top):
    return [path for path in paths if top in (path, *path.parents)]


KINDS = (is_file, is_folder, Path.is_symlink)


def find_linked():
    groups = {}
    for path in sorted(TOP.rglob("*")):
        if is_file(path) and path.stat().st_nlink > 1:
            groups.setdefault((path.stat().st_dev, path.stat().st_ino), []).append(path)
    LINKED.update({path: group for group in groups.values() for path in group})


def change(path):
    """Whether the content of `path` may be changed."""
    if not is_place(path) or not is_file(path) or path in CHANGED | PARTED:
        return False
    CHANGED.update(LINKED.get(path, []))
    return True


def remove(path):
    """Remove what is there; tell whether it is gone."""
    if CHANGED.intersection(inside(LINKED, path)):
        return False
    for name in inside(LINKED, path):
        PARTED.update(LINKED.pop(name))
    subprocess.run(["rm", "-rf", "--", path], check=True)
    REMOVED.add(path)
    return True


def write(path, text):
    if is_free(path) or change(path):
        path.write_text(text)


def append(path, text):
    if change(path):
        with path.open("a") as file:
            file.write(text)


def replace(path, text):
    new = path.with_name("new")
    if is_place(path) and is_file(path) and path not in LINKED and remove(new):
        new.write_text(text)
        new.rename(path)
        REMOVED.add(path)


def delete(path):
    if os.path.lexists(path):
        remove(path)


def folder(path):
    if is_free(path) and path not in REMOVED:
        path.mkdir()


def folder_again(path, text):
    """A folder in the place of whatever was there."""
    if is_place(path) and path not in REMOVED and remove(path):
        path.mkdir()
        (path / "a").write_text(text)
        (path / "sub").mkdir()
        (path / "sub" / "b").symlink_to("a")
        AGAIN.add(path)


def file_again(path, text):
    if is_place(path) and remove(path):
        path.write_text(text)


def symlink(path, target):
    if is_free(path):
        path.symlink_to(target)


def link(path, source):
    if is_free(path) and is_file(source) and source not in LINKED:
        os.link(source, path)


def move(path, source):
    if not is_free(path) or not os.path.lexists(source) or source in path.parents:
        return
    odd = (found for found in (source, *source.rglob("*")) if not any(kind(found) for kind in KINDS))
    if not inside([*LINKED, *PARTED, *AGAIN, *odd], source) and not AGAIN.intersection(source.parents):
        subprocess.run(["mv", "-T", "--", source, path], check=True)


def mark(path):
    """Whether the mode and the attributes of `path` may be changed."""
    return (
        is_place(path)
        and path not in AGAIN
        and (is_folder(path) or (is_file(path) and path not in LINKED.keys() | PARTED))
    )


def mode(path, bits):
    if mark(path):
        path.chmod(bits)


def set_id(path, bits):
    path = path.with_name("set-id")
    if is_free(path):
        path.write_text("program")
        path.chmod(bits)


def attribute(path, name, value):
    if mark(path):
        os.setxattr(path, f"user.{name}", value.encode())


def fifo(path):
    if is_free(path):
        os.mkfifo(path)


TOP.mkdir(exist_ok=True)
find_linked()
for line in sys.stdin:
    name, path, *rest = json.loads(line)
    (TOP / Path(path).parts[0]).mkdir(exist_ok=True)
    words = [TOP / rest[0]] if name in ("link", "move") else rest
    globals()[name](TOP / path, *words)

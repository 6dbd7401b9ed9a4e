"""What the %post of a layer has compiled, kept for the next build in which the same programs run.

compiled/RECIPE.tar    the files that it has left in /mnt/compiled        compiled/RECIPE.json   their digest

RECIPE stands for all that has run to make the layer and those below it: see layer_key. Programs of an image can write
anything, so no definition may put anything in the place of what another one has compiled.
"""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path, PurePosixPath

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.cache.cache_files import load_record
from ctrain_builder.files import manifest_writer
from ctrain_builder.files.layer_content import LayerContent
from ctrain_builder.files.tree import Tree
from ctrain_runtime.base.digest import file_digest

DIRECTORY = "compiled"  # below /mnt


def path_of(cache: Cache, recipe: str) -> Path:
    return cache.root / "compiled" / f"{recipe}.tar"


def offer(cache: Cache, recipe: str, mnt_dir: Path) -> None:
    """Put what is kept, unless it is damaged, where %post looks for it."""
    path = path_of(cache, recipe)
    with cache.locks.use(path) as is_kept:
        content = load_record(LayerContent, path.with_suffix(".json")) if is_kept else None
        if content is None or file_digest(path) != content.digest:
            return
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file and ".." not in PurePosixPath(member.name).parts:  # a cache may be a group's
                    Tree(mnt_dir).write(f"{DIRECTORY}/{member.name}", file.read(), member.mode)


def keep(cache: Cache, recipe: str, work: Path, mnt_dir: Path) -> None:
    """Keep what %post has left there, in the place of what was kept before. Raises BuildError."""
    tree, made = Tree(mnt_dir), work / "compiled.tar"
    entries = sorted((entry for entry in tree.walk(DIRECTORY) if not entry.is_directory), key=lambda entry: entry.name)
    # Without a link, or a file that its owner may not read, it would not be what was made.
    if not entries or not all(entry.is_file and entry.status.st_mode & stat.S_IRUSR for entry in entries):
        return
    with tarfile.open(made, "w") as tar:
        for entry in entries:
            with tree.open(entry.name) as file:
                member, status = tarfile.TarInfo(str(entry.name.relative_to(DIRECTORY))), os.fstat(file.fileno())
                member.size, member.mode = status.st_size, status.st_mode & 0o777
                tar.addfile(member, file)
    cache.layers.add(made, path_of(cache, recipe), manifest_writer.utc_now())

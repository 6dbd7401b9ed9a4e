"""COPY and ADD of a Dockerfile: what they bring into an image, and from where.

%files are copied before %post, and by other rules. So they are put aside in the image, and copied where the Dockerfile
does: after the commands before it, the contents of a directory and not the directory itself.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from ctrain_builder.imports.words import double_quoted

_ARCHIVE = re.compile(r"\.(tar|tar\.(gz|bz2|xz|zst)|tgz|tbz2?|txz)$")
_URL = re.compile(r"(https?|ftp)://")
_GIT = re.compile(r"git@|git://|ssh://|https?://\S*\.git([#?]|$)")
_UNUSUAL = re.compile(r'[\s"\'#%*?\[\]{}]')  # in %files, of which spython writes no quotes


class Missing(Exception):
    """A source that can't be copied; the reason, and what to do."""

    def __init__(self, why: str, todo: str) -> None:
        super().__init__(why)
        self.why, self.todo = why, todo


@dataclass(frozen=True)
class Context:
    """The directory that COPY copies from, and the one that %files are relative to. Both are without links.

    `own`: what ctrain has in there, which `COPY . .` does not mean."""

    directory: Path
    root: Path
    own: Path

    def sources(self, name: str) -> list[Path]:
        """What a source of COPY names: a file or directory, or those that a pattern matches. Raises Missing."""
        relative = name.lstrip("/") or "."
        pattern = any(character in relative for character in "*?[")
        try:
            paths = sorted(self.directory.glob(relative)) if pattern else [self.directory / relative]
            paths = [path.resolve() for path in paths if path.exists() and not (pattern and self.is_ignored(path))]
        except PermissionError as error:
            raise Missing(
                f"{name} cannot be read: {error.strerror}", f"Check the permissions in {self.directory}"
            ) from error
        except (ValueError, NotImplementedError, OSError, RuntimeError) as error:  # what pathlib says to strange names
            raise Missing(f"{name} cannot be the name of a file", "Name the files in %files") from error
        if not paths:
            raise Missing(f"there is no {name} in {self.directory}", "Name the directory that it is in: --context DIR")
        return paths

    def is_ignored(self, path: Path) -> bool:
        """Whether Docker leaves a file of the top of the directory out, or ctrain does."""
        if path in (self.own, *self.own.parents) or path.name == ".git":
            return True
        ignored = False
        for line in self._ignore_file():
            pattern = line.lstrip("!").strip("/").removeprefix("**/").removesuffix("/**")
            if fnmatch(path.name, pattern):
                ignored = not line.startswith("!")
        return ignored

    def has_deep_patterns(self) -> bool:
        """Whether .dockerignore may leave out something below the top."""
        return any("/" in line.strip("/") for line in self._ignore_file())

    def _ignore_file(self) -> Iterator[str]:
        file = self.directory / ".dockerignore"
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        return (line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))

    def entries(self, directory: Path) -> list[Path]:
        """What is copied of a directory: itself, or the parts of the one that also has what nobody means."""
        if directory not in (self.directory, self.root):
            return [directory]
        return [path for path in sorted(directory.iterdir()) if not self.is_ignored(path)]

    def name(self, path: Path) -> str:
        """As %files names it. Raises Missing."""
        if not path.is_relative_to(self.root):
            todo = f"Copy it there, and write its path in %files; they are relative to {self.root}"
            raise Missing(f"{path} is not below {self.root}, where definitions take their files from", todo)
        name = str(PurePosixPath(path.relative_to(self.root)))
        if _UNUSUAL.search(name):
            raise Missing(f"the name {name!r} has characters that %files gives another meaning", "Rename the file")
        return name


def is_url(source: str) -> bool:
    return bool(_URL.match(source)) and not is_git(source)


def is_git(source: str) -> bool:
    return bool(_GIT.match(source))


def is_archive(path: Path) -> bool:
    """Whether ADD unpacks a file."""
    return path.is_file() and bool(_ARCHIVE.search(path.name))


def place(
    source: Path, parts: Sequence[Path], target: str, aside: str, *, to_directory: bool, unpack: bool
) -> tuple[list[tuple[Path, str]], list[str]]:
    """The pairs of %files for `parts` of a source, put `aside`, and the commands that put them where they belong.

    `target` is text between double quotes of a shell; with `to_directory`, a directory that exists."""
    to = double_quoted(target)
    make = [] if to_directory else [f"mkdir -p {to}"]
    if source.is_dir():
        whole = [source] == list(parts)
        pairs = [(part, aside if whole else f"{aside}/{part.name}") for part in parts]
        return pairs, [*make, f"cp -r {aside}/. {to}"]
    pairs = [(source, f"{aside}/{source.name}")]
    if unpack:
        return pairs, [*make, f"tar -xf {aside}/{source.name} -C {to}"]
    return pairs, [*([] if to_directory else make_parent(target)), f"cp {aside}/{source.name} {to}"]


def make_parent(target: str) -> list[str]:
    """The command that makes the directory of a file."""
    above = f'$(dirname "{target}")' if "}" in posixpath.basename(target) else posixpath.dirname(target)
    return [f"mkdir -p {double_quoted(above)}"] if above.strip("/") else []

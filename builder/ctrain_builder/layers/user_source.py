"""What the build of a user layer sees of its user's files: the file that describes it, and what that or the command
line names; never the directory around them, which may be a home with its keys.

A requirements file names others by -r, -c, -f and paths of packages. It is read only to find these: what pip alone
would find in it is missing in the container, and pip says so.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from ctrain_builder.definitions import files
from ctrain_builder.definitions.files import SourceFile
from ctrain_runtime.errors import ConfigError, UsageError

_ARCHIVES = (".whl", ".zip", ".tar", ".tgz", ".tbz", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
_SHORT = {"r": "requirement", "c": "constraint", "f": "find-links", "e": "editable"}
_OPTION = re.compile(rf"(?:-([rcfe])\s*|--({'|'.join(_SHORT.values())})(?:\s*=\s*|\s+))(\S.*)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_NAMED_URL = re.compile(r"[\w.-]+\s*(?:\[[^]]*\])?\s*@\s*(\S+)")
_REST = re.compile(r"\s+;.*|\s+--.*|;.*")  # of a line, behind a package: markers and options
_EXTRAS = re.compile(r"\[[^]]*\]$")
_Names = dict[PurePosixPath, Path]


def is_script(source: Path, text: str) -> bool:
    """Whether a source is run, not given to pip: NAME.sh, or with #!."""
    return text.startswith("#!") or source.suffix == ".sh"


def collect(source: Path, named: Sequence[Path], homes: Sequence[Path]) -> tuple[SourceFile, ...]:
    """All files that the build sees below /mnt/source. `source` is resolved; `named` are files and directories that the
    command line adds; `homes` are the user's. Raises UsageError."""
    try:
        names: _Names = {PurePosixPath(source.name): source}
        places = [_add(path, source.parent, homes, names) for path in named]
        if not is_script(source, _text(source)):
            _require(source.parent, PurePosixPath(source.name), names, places, homes)
        return tuple(files.source_file(path.resolve(), relative) for relative, path in names.items())
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error


def _add(path: Path, parent: Path, homes: Sequence[Path], names: _Names) -> PurePosixPath:
    """Add the files of --with to `names`: where they lie beside the source, or else under their own name, which is
    returned."""
    real = path.resolve()
    if not real.exists():
        raise UsageError(f"--with {path}: no such file or directory")
    home = next((home for home in homes if home.is_relative_to(real)), None)
    if home:
        what = f"--with {path} would show the whole home {home} to every program of the build"
        raise UsageError(what, "Name the files and directories that the build needs")
    name = PurePosixPath(real.relative_to(parent) if real.is_relative_to(parent) else real.name)
    try:
        for file, below in files.below(real):
            other = names.setdefault(name / below, file)
            if other != file:
                raise UsageError(f"--with {path}: {name / below} is already {other}", "Rename one of them")
    except ConfigError as error:
        raise UsageError(f"--with names {path}, {error.message}", error.hint) from error
    return name


def _require(
    root: Path, file: PurePosixPath, names: _Names, places: Sequence[PurePosixPath], homes: Sequence[Path]
) -> None:
    """Add to `names` what a requirements file names on this machine, and what the files name that it includes. What
    lies in `places` is seen in any case."""
    for option, text in _references(_text(root / file), root / file):
        is_text = option in ("requirement", "constraint")
        relative = _below(root, file.parent if is_text or option == "find-links" else PurePosixPath(), text, file)
        path = root / relative
        if relative in names or any(place in (relative, *relative.parents) for place in places):
            continue
        tops = {one.parts[:1] for one in (relative, path.resolve().relative_to(root))}
        if root in homes and any("".join(top).startswith(".") for top in tops):
            hint = f"Add it if every program of the build may read it: --with {path}"
            raise UsageError(f"{root / file} names {text}, a hidden file of your home", hint)
        if path.is_dir() and option == "find-links":
            archives = (one for one in sorted(path.iterdir()) if one.name.lower().endswith(_ARCHIVES))
            names.update({relative / one.name: one for one in archives if one.is_file() and not one.is_symlink()})
        elif path.is_dir():
            hint = f"Build a wheel of it (pip wheel --no-deps {path}), or add: --with {path}"
            raise UsageError(f"{root / file} names the directory {text}, which the build does not see", hint)
        elif path.is_file():
            names[relative] = path
            if is_text:
                _require(root, relative, names, places, homes)
        else:
            raise UsageError(f"{root / file} names {text}, but there is no file {path}")


def _below(root: Path, base: PurePosixPath, text: str, file: PurePosixPath) -> PurePosixPath:
    """The path below `root` that a requirements file names. Raises UsageError for one outside, also by a link: who
    wrote the file could ask for any file of its user."""
    relative = PurePosixPath(os.path.normpath(base / text))
    if relative.is_absolute() or ".." in relative.parts or not (root / relative).resolve().is_relative_to(root):
        hint = f"Copy it there, or add --with {text} and write its name alone"
        raise UsageError(f"{root / file} names {text}, which is not below {root}", hint)
    return relative


def _references(text: str, file: Path) -> Iterator[tuple[str, str]]:
    """(option, path) of what a requirements file names on this machine; the option of a package is ""."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        option = _OPTION.fullmatch(line)
        if line.startswith("-") and not option:  # as --index-url=https://HOST/simple
            continue
        name = (option[2] or _SHORT[option[1]]) if option else ""
        path = _unquoted(option[3]) if option else _EXTRAS.sub("", _REST.sub("", line))
        url = _NAMED_URL.fullmatch(path)
        path = url[1] if url else path
        if path.startswith("file:"):
            raise UsageError(f"{file} names {path}", "Write it as a path, relative to the requirements file")
        if path and not _URL.match(path) and (name or _is_path(path)):
            yield name, path


def _unquoted(text: str) -> str:
    try:
        return (shlex.split(text) or [""])[0]
    except ValueError:  # pip will say so
        return ""


def _is_path(text: str) -> bool:
    """Whether pip takes a requirement for a path."""
    return not re.search(r"\s", text) and ("/" in text or text.startswith(".") or text.lower().endswith(_ARCHIVES))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="surrogateescape")

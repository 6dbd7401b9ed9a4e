"""Apptainer definition files: read, check and render them by Apptainer's own rules.

One stage, the standard sections, `%arguments` and `{{ NAME }}`. What a layer can't honour is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ctrain_runtime.errors import ConfigError

PARENT = "PARENT"  # the argument for which an upper definition's `From:` stands
SECTIONS = frozenset(
    ("arguments", "environment", "files", "help", "labels", "post", "pre", "runscript", "setup", "startscript", "test")
)
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_COMMENT = re.compile(r"#[^!]")
_WORD = re.compile(r'"[^"]*"|\S+')
_DIRECTIVE = re.compile(r"(?m)^\s*#\s*ctrain:\s*(.*?)\s*$")
_INDEPENDENT = "independent of upper layers"  # a comment for ctrain in %test


@dataclass(frozen=True)
class Section:
    """What follows a line `%name ARGS`."""

    args: str
    body: str


@dataclass(frozen=True)
class FileCopy:
    """A line of %files: a path below the definition's source root, and where it goes in the image."""

    source: PurePosixPath
    target: str


@dataclass(frozen=True)
class Definition:
    """A definition file. `text` may still hold placeholders; `render` fills them."""

    name: str
    path: Path
    text: str
    header: Mapping[str, str]
    sections: Mapping[str, Section]

    def body(self, section: str) -> str:
        """The lines of a section; empty when the file has none."""
        return self.sections[section].body if section in self.sections else ""

    @property
    def source_root(self) -> Path:
        """What %files are relative to: the directory that holds definitions/."""
        return self.path.parents[2]

    @property
    def is_base(self) -> bool:
        """Whether it starts from something that ctrain did not make."""
        return PARENT not in _PLACEHOLDER.findall(self.header.get("from", ""))

    @property
    def defaults(self) -> dict[str, str]:
        """The arguments of %arguments with their values."""
        pairs = (line.split("=", 1) for line in _content(self.body("arguments")) if "=" in line)
        return {name.strip(): value.strip() for name, value in pairs}

    @property
    def placeholders(self) -> frozenset[str]:
        """The arguments that the text uses; Apptainer refuses a --build-arg for any other."""
        return frozenset(match[1] for line in self.text.split("\n") for match in _active(line))

    @property
    def labels(self) -> dict[str, str]:
        pairs = (line.split(None, 1) for line in _content(self.body("labels")))
        return {name: "".join(value) for name, *value in pairs}

    @property
    def files(self) -> tuple[FileCopy, ...]:
        return tuple(_file_copy(line, self.path) for line in _content(self.body("files")))


def is_independent(test: str) -> bool:
    """Whether a %test declares that it uses nothing of the layers above: its result outlives their changes."""
    return _INDEPENDENT in _DIRECTIVE.findall(test)


def read(name: str, path: Path) -> Definition:
    """The definition in a file, not yet rendered. Raises ConfigError."""
    try:
        return parse(name, path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"definition {name}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"definition {name}: {path} is not a text file") from error


def parse(name: str, path: Path, text: str) -> Definition:
    """The definition in `text`; `path` is named in errors."""
    head: list[str] = []
    args: dict[str, str] = {}
    bodies: dict[str, list[str]] = {}
    lines = head
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        if not line.lstrip().startswith("%"):
            lines.append(line)
            continue
        word, _, rest = line.strip()[1:].partition(" ")
        if word.lower() not in SECTIONS:
            known = ", ".join(f"%{section}" for section in sorted(SECTIONS))
            raise ConfigError(f"{path}, line {number}: unknown section %{word}", f"Known: {known}")
        args[word.lower()] = rest.split("#")[0].strip()
        lines = bodies.setdefault(word.lower(), [])
    sections = {section: Section(args[section], "\n".join(body) + "\n") for section, body in bodies.items()}
    if len(re.findall(r"(?mi)^bootstrap:", text)) > 1:
        raise ConfigError(f"{path} has several stages", "Make each stage a definition of its own")
    if args.get("files"):
        raise ConfigError(f"{path}: `%files {args['files']}` copies from another stage", "Copy from the host instead")
    for directive in _DIRECTIVE.findall(sections["test"].body) if "test" in sections else ():
        if directive != _INDEPENDENT:
            raise ConfigError(f"{path}: %test has an unknown directive {directive!r}", f"Known: {_INDEPENDENT}")
    return Definition(name, path, text, _header(head, path), sections)


def _header(lines: list[str], path: Path) -> dict[str, str]:
    header: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        key, colon, value = line.split("#")[0].partition(":")
        if colon:
            header[key.strip().lower()] = value.strip()
        elif key.strip():
            raise ConfigError(f"{path}, line {number}: expected `Key: value` in the header, found {line.strip()!r}")
    if "bootstrap" not in header:
        raise ConfigError(f"{path} has no header line `Bootstrap:`", "Add what the image starts from")
    return header


def values(definition: Definition, given: Mapping[str, str]) -> dict[str, str]:
    """The value of every argument that the text uses: the one in `given`, or else its default.

    As in Apptainer, a value may hold placeholders, one level deep. Raises ConfigError for an argument without a value.
    """
    known = {**definition.defaults, **given}
    for name in sorted(definition.placeholders - known.keys()):
        hint = f"Pass --build-arg {name}=VALUE"
        raise ConfigError(f"{definition.path}: argument {name} has no value", hint)
    return {
        name: _PLACEHOLDER.sub(lambda inner: known.get(inner[1], inner[0]), known[name])
        for name in definition.placeholders
    }


def render(definition: Definition, given: Mapping[str, str]) -> Definition:
    """`definition` with every placeholder replaced; as in Apptainer, one behind a comment sign stays."""
    arguments = values(definition, given)
    parts: list[str] = []
    for line in definition.text.splitlines(keepends=True):
        position = 0
        for match in _active(line):
            parts += [line[position : match.start()], arguments[match[1]]]
            position = match.end()
        parts.append(line[position:])
    return parse(definition.name, definition.path, "".join(parts))


def _active(line: str) -> Iterator[re.Match[str]]:
    """The placeholders of a line that are not part of a comment."""
    return (match for match in _PLACEHOLDER.finditer(line) if not _COMMENT.search(line, 0, match.start()))


def _content(body: str) -> Iterator[str]:
    stripped = (line.strip() for line in body.split("\n"))
    return (line for line in stripped if line and not line.startswith("#"))


def _file_copy(line: str, path: Path) -> FileCopy:
    words = [word.strip('"') for word in _WORD.findall(line)]
    source = PurePosixPath(words[0])
    if source.is_absolute() or ".." in source.parts:
        raise ConfigError(
            f"{path}: %files copies {words[0]}, which is outside the project",
            "Name a path below the parent directory of definitions/",
        )
    return FileCopy(source, words[1] if len(words) > 1 else f"/{source}")

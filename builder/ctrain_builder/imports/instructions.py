"""Reads a Dockerfile into its instructions, by Docker's rules: continued lines with comments among them, heredocs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*")
_HEREDOC = re.compile(r"(?<!\S)\d*<<(-?)([\"']?)([A-Za-z_][\w.]*)\2(?!\S)")
_FLAG = re.compile(r"\s*(--[a-z]\S*)")
_WITH_HEREDOCS = frozenset(("ADD", "COPY", "RUN"))
_WITH_FLAGS = frozenset(("ADD", "COPY", "FROM", "HEALTHCHECK", "RUN"))


@dataclass(frozen=True)
class Heredoc:
    """`lines` without the delimiter; `expands`: Docker replaces variables in it, where it does that at all."""

    marker: str  # as in <<-EOF, without quotes
    delimiter: str
    lines: tuple[str, ...]
    expands: bool


@dataclass(frozen=True)
class Instruction:
    """`lines` are what follows the word and its flags, without escapes, comments and empty lines between them."""

    line: int  # where it begins, from 1
    word: str  # in capitals
    flags: tuple[str, ...]
    lines: tuple[str, ...]
    heredocs: tuple[Heredoc, ...] = ()

    @property
    def text(self) -> str:
        """The arguments as Docker sees them."""
        return "".join(self.lines).strip()

    def __str__(self) -> str:
        return " ".join([self.word, *self.flags, *self.text.split()])

    def flag(self, name: str) -> str:
        """The value of a flag; "" without it."""
        return next((flag.partition("=")[2] for flag in self.flags if flag.partition("=")[0] == f"--{name}"), "")


def read(text: str) -> tuple[tuple[Instruction, ...], str]:
    """The instructions of a Dockerfile, and its escape character."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    escape = _escape(lines)
    return tuple(_instructions(lines, escape)), escape


def _escape(lines: list[str]) -> str:
    """The character that continues lines: directives come before anything else."""
    for line in lines:
        directive = _DIRECTIVE.fullmatch(line.strip())
        if not directive:
            break
        if directive[1].lower() == "escape" and directive[2] in ("`", "\\"):
            return directive[2]
    return "\\"


def _instructions(lines: list[str], escape: str) -> Iterator[Instruction]:
    continued = re.compile(rf"(^|.*[^{re.escape(escape)}]){re.escape(escape)}[ \t]*")
    at = 0
    while at < len(lines):
        begin = at
        parts: list[str] = []
        while at < len(lines):
            line, at = lines[at], at + 1
            if not line.strip() or line.lstrip().startswith("#"):
                if parts:
                    continue  # Docker drops comments and empty lines in the middle of an instruction
                break
            more = continued.fullmatch(line)
            parts.append(more[1] if more else line)
            if not more:
                break
        if "".join(parts).strip():
            heredocs, at = _heredocs(parts, lines, at)
            yield _instruction(begin + 1, parts, heredocs)


def _heredocs(parts: list[str], lines: list[str], at: int) -> tuple[tuple[Heredoc, ...], int]:
    """The heredocs that an instruction begins, and the number of the line behind them. What looks like one and never
    ends is none: `<<` also shifts numbers."""
    heredocs: list[Heredoc] = []
    text = "".join(parts)
    if text.split(None, 1)[0].upper() not in _WITH_HEREDOCS:
        return (), at
    for match in _HEREDOC.finditer(text):
        body: list[str] = []
        for position in range(at, len(lines)):
            line = lines[position].lstrip("\t") if match[1] else lines[position]
            if line == match[3]:
                heredocs.append(Heredoc(re.sub("[\"']", "", match[0]), match[3], tuple(body), not match[2]))
                at = position + 1
                break
            body.append(line)
    return tuple(heredocs), at


def _instruction(number: int, parts: list[str], heredocs: tuple[Heredoc, ...]) -> Instruction:
    first = parts[0].lstrip()
    split = re.match(r"\S+", first) or re.match("", first)
    word = split[0].upper() if split else ""
    rest = [first[len(word) :], *parts[1:]]
    flags: list[str] = []
    while word in _WITH_FLAGS and rest:
        flag = _FLAG.match(rest[0])
        if flag:
            flags.append(flag[1])
            rest[0] = rest[0][flag.end() :]
        elif rest[0].strip() or len(rest) == 1:
            break
        else:
            del rest[0]
    rest[0] = rest[0].lstrip()
    return Instruction(number, word, tuple(flags), tuple(rest), heredocs)

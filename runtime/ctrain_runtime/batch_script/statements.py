"""The simple commands of a shell script, each with its line, its words and what in them the shell would expand.

Apart from launchers/starters, which looks at a short text whose quotes no longer matter: here '$X' and "$X" differ.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Optional

_BLANK = re.compile(r"(?:[^\S\n]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[\n;&|()]")
_REDIRECTION = re.compile(r"[0-9]*(?:<<-?(?!<)|<<<|>>|[<>]&|>\||<>|[<>])|&>>?")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\Z")
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_PLAIN = re.compile(r"[^\s\\'\"$`;&|()<>]+")
_END = re.compile(r"\s|[;&|()<>]|\\\r?\n|\Z")
_IN_QUOTES = re.compile(r'[^\\"$`]+')


@dataclass(frozen=True)
class Part:
    """A piece of a word. `expands`: the shell replaces it, as $X or $(pwd); `quoted`: what replaces it is not split."""

    text: str
    expands: bool = False
    quoted: bool = False


Word = tuple[Part, ...]


@dataclass(frozen=True)
class Statement:
    """A simple command. `text` is as written; `end` is the operator after it, as in `|`. `reads`: a file or a text is
    its standard input."""

    line: int
    text: str
    words: tuple[Word, ...]
    end: str = ""
    reads: bool = False


def read_statements(text: str) -> list[Statement]:
    """The simple commands of a script, in order. Never raises: what is left open ends with the text."""
    reader = _Reader(text)
    while reader.at < len(text):
        reader.step()
    reader.finish("")
    return reader.statements


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.statements: list[Statement] = []
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._documents: list[str] = []
        self._reset()

    def _reset(self) -> None:
        self._words: list[Word] = []
        self._start = -1
        self._reads = False

    def step(self) -> None:
        """Read a word, a redirection, an operator or what is between them."""
        blank = _BLANK.match(self.text, self.at) or _COMMENT.match(self.text, self.at)
        redirection = _REDIRECTION.match(self.text, self.at)
        operator = _OPERATOR.match(self.text, self.at)
        if blank:
            self.at = blank.end()
        elif redirection:
            self.at = redirection.end()
            self._redirect(redirection[0])
        elif operator:
            self.finish(operator[0])
            self.at = operator.end()
            if operator[0] == "\n":
                self._skip_documents()
        else:
            self._start = self.at if self._start < 0 else self._start
            self._words.append(self._word())

    def finish(self, operator: str) -> None:
        """End a simple command."""
        if self._words:
            line = bisect_right(self._newlines, self._start - 1) + 1
            text = " ".join(self.text[self._start : self.at].replace("\\\n", " ").split())
            self.statements.append(Statement(line, text, tuple(self._words), operator, self._reads))
        self._reset()

    def _redirect(self, operator: str) -> None:
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at
        if self.at < len(self.text) and not _OPERATOR.match(self.text, self.at):
            target = "".join(part.text for part in self._word())
            if operator.lstrip("0123456789") in ("<<", "<<-"):
                self._documents.append(target)
        self._reads = self._reads or "<" in operator

    def _skip_documents(self) -> None:
        """Skip the texts that << announced, up to the line that ends each."""
        for end in self._documents:
            line: Optional[str] = None
            while self.at < len(self.text) and line != end:
                newline = self.text.find("\n", self.at)
                stop = len(self.text) if newline < 0 else newline
                line, self.at = self.text[self.at : stop].strip(), min(stop + 1, len(self.text))
        self._documents = []

    def _word(self) -> Word:
        parts: list[Part] = []
        start = self.at
        while self.at < len(self.text):
            parts += self._parts()
            if self.text.startswith("(", self.at) and _ARRAY.match(self.text[start : self.at]):
                parts.append(self._until(_closing(self.text, self.at), quoted=True))
            if _END.match(self.text, self.at):
                break
        return tuple(parts)

    def _parts(self) -> list[Part]:
        """What comes next in a word: text, a quoted string, a character behind a backslash, or an expansion."""
        plain = _PLAIN.match(self.text, self.at)
        if plain:
            self.at = plain.end()
            return [Part(plain[0])]
        if self.text[self.at] == '"':
            return self._double_quoted()
        if self.text[self.at] in "$`":
            return [self._expansion(quoted=False)]
        begin, self.at = self.at + 1, self.at + 1
        if self.text[begin - 1] == "'":
            end = self.text.find("'", begin)
            self.at = len(self.text) if end < 0 else end + 1
            return [Part(self.text[begin : end if end >= 0 else None], quoted=True)]
        self.at = min(self.at + 1, len(self.text))  # behind the backslash
        return [] if self.text.startswith("\n", begin) else [Part(self.text[begin : self.at], quoted=True)]

    def _double_quoted(self) -> list[Part]:
        self.at += 1
        parts = [Part("", quoted=True)]
        while self.at < len(self.text) and self.text[self.at] != '"':
            plain = _IN_QUOTES.match(self.text, self.at)
            if plain:
                self.at = plain.end()
                parts.append(Part(plain[0], quoted=True))
            elif self.text[self.at] == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                self.at = min(self.at + 2, len(self.text))
                kept = {"\n": ""}.get(escaped, escaped if escaped in tuple('$`"\\') else f"\\{escaped}")
                parts.append(Part(kept, quoted=True))
            else:
                parts.append(self._expansion(quoted=True))
        self.at = min(self.at + 1, len(self.text))
        return parts

    def _expansion(self, *, quoted: bool) -> Part:
        """$NAME, ${...}, $(...), $((...)) or `...`; a lone $ is text."""
        name = _NAME.match(self.text, self.at)
        if name:
            return self._until(name.end(), quoted=quoted)
        if self.text[self.at] == "`":
            end = self.text.find("`", self.at + 1)
            return self._until(len(self.text) if end < 0 else end + 1, quoted=quoted)
        if self.text.startswith(("(", "{"), self.at + 1):
            return self._until(_closing(self.text, self.at + 1), quoted=quoted)
        self.at += 1
        return Part("$", quoted=quoted)

    def _until(self, end: int, *, quoted: bool) -> Part:
        text, self.at = self.text[self.at : end], end
        return Part(text, expands=True, quoted=quoted)


def _closing(text: str, at: int) -> int:
    """The end of the brackets that open at `at`; those in quotes do not count."""
    opening, closing = text[at], {"(": ")", "{": "}"}[text[at]]
    depth, quote = 0, ""
    while at < len(text):
        character = text[at]
        if character == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in (opening, closing):
            depth += 1 if character == opening else -1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)

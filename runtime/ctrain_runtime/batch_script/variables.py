"""What a shell script's variables hold, as far as that shows without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from ctrain_runtime.batch_script.statements import Part, Word, read_statements

# What is not known stands in a text as it is written, between two characters that no script holds (`clean`).
_BEGIN, _END = "\x02", "\x03"
_UNKNOWN = re.compile(f"{_BEGIN}([^{_END}]*){_END}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DEFAULT = re.compile(r"\$\{(\w+):?[-=](.*)\}", re.DOTALL)
_CHECKED = re.compile(r"\$\{(\w+):?\?.*\}", re.DOTALL)
_SUMS = {ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__, ast.FloorDiv: int.__floordiv__}
_LONGEST = 4_000  # characters of a value: A=$A$A, again and again, would fill the memory
_LONGEST_SUM = 100
_LARGEST = 10**9
_DEEPEST = 20  # defaults in defaults: ${A:-${B:-x}}


def clean(text: str) -> str:
    """A script without the two characters that mark what is not known."""
    return text.replace(_BEGIN, "").replace(_END, "")


def is_known(text: str) -> bool:
    return _BEGIN not in text


def unknown_in(text: str) -> list[str]:
    """What of a text is not known, as the script writes it."""
    return _UNKNOWN.findall(text)


def as_written(text: str) -> str:
    """A text with what is not known as the script writes it."""
    return _UNKNOWN.sub(r"\1", text)


@dataclass
class Variables:
    """The variables at one point of a script; None: assigned, but to what is unknown. `outputs` has what some commands
    print, without blanks, quotes and braces. Lives for the time of one reading."""

    values: dict[str, Optional[str]]
    outputs: Mapping[str, str] = field(default_factory=dict)

    def assign(self, name: str, value: str) -> None:
        self.values[name] = value if len(value) <= _LONGEST else None

    def words(self, word: Word) -> list[str]:
        """The words that a word becomes: what is not quoted is split at blanks."""
        fields, is_open = [""], any(part.quoted for part in word)
        for part in word:
            text = self._expanded(part)
            if not part.expands or part.quoted:
                fields[-1] += text
                is_open = True
                continue
            first, *rest = re.split(r"\s+", text) if is_known(text) else [text]
            fields[-1] += first
            fields += rest
        words = fields if is_open and len(fields) == 1 else [text for text in fields if text]
        return [self._home(text, word) for text in words]

    def text(self, word: Word) -> str:
        """The text of a word that is not split, as the value of an assignment."""
        return self._home("".join(map(self._expanded, word)), word)

    def _home(self, text: str, word: Word) -> str:
        """~/ at the start of a word, where it is not quoted."""
        home = self.values.get("HOME")
        if home and word and not word[0].quoted and (text == "~" or text.startswith("~/")):
            return home + text[1:]
        return text

    def _expanded(self, part: Part) -> str:
        value = self._value(part.text) if part.expands else part.text
        return value if value is not None and len(value) <= _LONGEST else f"{_BEGIN}{part.text}{_END}"

    def _value(self, text: str) -> Optional[str]:
        """The value of an expansion; None if it is unknown."""
        name = _VARIABLE.fullmatch(text) or _CHECKED.fullmatch(text)
        if name:
            return self.values.get(name[1] or name[2])
        default = _DEFAULT.fullmatch(text)
        if default:
            return self._value_or(default[1], default[2])
        if text.startswith("$((") and text.endswith("))"):
            return self._sum(text[3:-2])
        return self.outputs.get(re.sub(r"[\s\"'{}]", "", text.strip("`").removeprefix("$(").removesuffix(")")))

    def _value_or(self, name: str, default: str) -> Optional[str]:
        if name in self.values:
            return self.values[name] or None
        commands = read_statements(f'x="{default}"') if '"' not in default and default.count("${") < _DEEPEST else []
        value = self.text(commands[0].words[0])[2:] if len(commands) == 1 else ""
        return value if commands and is_known(value) else None

    def _sum(self, text: str) -> Optional[str]:
        """The result of an arithmetic expansion of whole numbers."""
        values = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda match: self.values.get(match[1]) or "?", text)
        if len(values) > _LONGEST_SUM or not re.fullmatch(r"[0-9\s()*/+-]+", values):
            return None
        try:
            return str(_evaluate(ast.parse(values.replace("/", "//").strip(), mode="eval").body))
        except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
            return None


def _evaluate(node: ast.expr) -> int:
    """The value of a sum of whole numbers. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= _LARGEST:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return int(_SUMS[type(node.op)](_evaluate(node.left), _evaluate(node.right)))
    raise ValueError(node)

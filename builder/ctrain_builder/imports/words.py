"""Words of a Dockerfile's instructions: quotes, escapes and variables, by Docker's rules; how a shell writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Union

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^{}$]*))?\})")
_BARE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_TEMPLATE = re.compile(r"\{(?=\{\s*\w+\s*\}\})")


@dataclass(frozen=True)
class Variable:
    """`$name` or `${name}`, or with an operator: `${name:-other}`, `${name:+other}`."""

    name: str
    operator: str = ""
    other: str = ""

    def __str__(self) -> str:
        return f"${{{self.name}{self.operator}{self.other}}}"


Part = Union[str, Variable]
Word = tuple[Part, ...]


class Unknown(Exception):
    """A variable whose value is known only in the image."""


def split(text: str, escape: str = "\\") -> list[Word]:
    """The words of a text. A quote that never ends is a character."""
    words: list[Word] = []
    parts: list[Part] = []
    position, quote, begun = 0, "", False
    while position < len(text):
        character = text[position]
        variable = None if quote == "'" else _VARIABLE.match(text, position)
        if not quote and character.isspace():
            if begun:
                words.append(_joined(parts))
            parts, begun = [], False
        elif variable:
            parts.append(Variable(variable[1] or variable[2], variable[3] or "", variable[4] or ""))
            position = variable.end() - 1
        elif character == quote or (not quote and character in "\"'" and character in text[position + 1 :]):
            quote = "" if quote else character
        elif character == escape and quote != "'" and position + 1 < len(text):
            position += 1
            kept = character if quote and text[position] not in f'"${escape}' else ""
            parts.append(kept + text[position])
        else:
            parts.append(character)
        begun = begun or bool(quote) or not character.isspace()
        position += 1
    return [*words, _joined(parts)] if begun else words


def raw(text: str) -> Word:
    """A text in which only variables mean something."""
    parts: list[Part] = []
    position = 0
    for match in _VARIABLE.finditer(text):
        parts += [text[position : match.start()], Variable(match[1] or match[2], match[3] or "", match[4] or "")]
        position = match.end()
    return _joined([*parts, text[position:]])


def _joined(parts: Iterable[Part]) -> Word:
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    return tuple(joined)


def quote(text: str) -> str:
    """A text as one word of a shell, in which Apptainer sees no argument of its own."""
    return text if _BARE.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    """The same in quotes, whatever it is."""
    inner = text.replace("'", "'\"'\"'")
    return f"'{_TEMPLATE.sub(chr(123) + chr(39) * 2, inner)}'"


def double_quoted(text: str) -> str:
    """What stands between double quotes of a shell as a word; without them where they change nothing."""
    return text if _BARE.fullmatch(text) else f'"{text}"'


def placeholders(text: str) -> list[str]:
    """The names of the arguments that a text of ours has."""
    return re.findall(r"\{\{ (\w+) \}\}", text)


def is_template(text: str) -> bool:
    """Whether Apptainer would take a part of a text for an argument."""
    return bool(_TEMPLATE.search(text))


def shell(word: Word, arguments: Mapping[str, str]) -> str:
    """What stands between double quotes in a shell. `arguments` have their defaults: they are written {{ NAME }}."""
    return "".join(
        _TEMPLATE.sub('{""', re.sub(r'([\\$`"])', r"\\\1", part)) if isinstance(part, str) else _shell(part, arguments)
        for part in word
    )


def plain(word: Word, arguments: Mapping[str, str], known: Mapping[str, str]) -> str:
    """The text of a word outside a shell. `known` are variables of the environment. Raises Unknown."""
    texts = []
    for part in word:
        if isinstance(part, Variable):
            argument = _argument(part, arguments)
            if argument is None and part.name not in known and part.operator not in ("-", ":-"):
                raise Unknown(part.name)
            texts.append(_value(part, known) if argument is None else argument)
        else:
            texts.append(part)
    return "".join(texts)


def _shell(variable: Variable, arguments: Mapping[str, str]) -> str:
    argument = _argument(variable, arguments)
    if argument is not None:
        return argument
    return str(variable) if variable.operator else f"${{{variable.name}}}"


def _argument(variable: Variable, arguments: Mapping[str, str]) -> Union[str, None]:
    """The text for an argument; None for a variable of the environment."""
    if variable.name not in arguments:
        return None
    return _chosen(variable, f"{{{{ {variable.name} }}}}", is_set=bool(arguments[variable.name]))


def _value(variable: Variable, known: Mapping[str, str]) -> str:
    value = known.get(variable.name, "")
    return _chosen(variable, value, is_set=bool(value))


def _chosen(variable: Variable, value: str, *, is_set: bool) -> str:
    if variable.operator.endswith("-"):
        return value if is_set else variable.other
    if variable.operator.endswith("+"):
        return variable.other if is_set else ""
    return value

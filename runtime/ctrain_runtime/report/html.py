"""HTML of which every text is escaped: a run's log, metrics and settings are whatever its program has written."""

from __future__ import annotations

import html

EMPTY = {"circle", "line", "meta", "path", "polyline", "rect"}


class Html(str):
    """Text that is HTML already: what `element` and `join` have made."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """An element. Children and values of attributes are escaped, but for Html; `class_` and `text_anchor` are the
    attributes class and text-anchor."""
    pairs = "".join(f' {key.rstrip("_").replace("_", "-")}="{_safe(str(value))}"' for key, value in attributes.items())
    if name in EMPTY and not children:
        return Html(f"<{name}{pairs}/>")
    return Html(f"<{name}{pairs}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else _safe(child) for child in children))


def _safe(text: str) -> str:
    """Escaped, and without what HTML does not allow: control characters and halves of characters."""
    kept = "".join(
        letter if letter in "\n\t" or letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return html.escape(kept)

"""Which known word a mistyped one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SIMILARITY = 0.6  # of 1; below it words look alike to nobody
SHORTEST_PREFIX = 2  # letters; a single one begins too many words


def closest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that `word` abbreviates, else the most similar one; "" when none is similar. Dashes don't count."""
    bare = {candidate.lstrip("-"): candidate for candidate in sorted(candidates)}
    typed = word.lstrip("-")
    longer = [name for name in bare if name.startswith(typed) and name != typed]
    if longer and len(typed) >= SHORTEST_PREFIX:
        return bare[min(longer, key=len)]
    similar = difflib.get_close_matches(typed, bare, n=1, cutoff=SIMILARITY)
    return bare[similar[0]] if similar else ""


def suggest(word: str, candidates: Iterable[str]) -> str:
    """The question for an error's hint, as in "Did you mean 'nodes'?"; "" when no candidate is similar."""
    near = closest(word, candidates)
    return f"Did you mean {near!r}?" if near else ""

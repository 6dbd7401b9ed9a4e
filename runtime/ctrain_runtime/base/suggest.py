"""Suggests the word that a mistyped one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

MIN_SIMILARITY = 0.65  # of 1; below it, words do not look alike: `partition` is not `description`
MIN_PREFIX_LETTERS = 2  # too many words begin with a given letter


def closest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that `word` abbreviates, else the most similar one, ignoring leading dashes; "" without any."""
    bare = {candidate.lstrip("-"): candidate for candidate in sorted(candidates)}
    typed = word.lstrip("-")
    longer = [name for name in bare if name.startswith(typed) and name != typed]
    if longer and len(typed) >= MIN_PREFIX_LETTERS:
        return bare[min(longer, key=len)]
    import difflib  # only for mistakes: start-up is measured

    similar = difflib.get_close_matches(typed, bare, n=1, cutoff=MIN_SIMILARITY)
    return bare[similar[0]] if similar else ""


def suggest(word: str, candidates: Iterable[str]) -> str:
    """The question for an error's hint, as in "Did you mean 'nodes'?"; "" if no candidate is similar."""
    near = closest(word, candidates)
    return f"Did you mean {near!r}?" if near else ""

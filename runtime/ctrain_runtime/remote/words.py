"""What ctrain on one's own machine and ctrain on a login node tell each other: a request as one word of a command line,
and an answer behind a mark, for login shells may print before it."""

from __future__ import annotations

import base64
import json
from typing import Any

from ctrain_runtime.errors import UsageError

PROTOCOL = 2
MARK = b"--- ctrain answers ---\n"  # a line


def as_word(request: dict[str, Any]) -> str:
    """A request in letters that mean nothing to any shell."""
    return base64.urlsafe_b64encode(json.dumps({"protocol": PROTOCOL, **request}).encode()).decode()


def from_word(word: str) -> dict[str, Any]:
    """The request of a word. Raises UsageError for one of another version."""
    try:
        request = json.loads(base64.urlsafe_b64decode(word))
    except ValueError as error:
        raise UsageError(f"not a request of ctrain --on: {word[:40]!r}") from error
    if not isinstance(request, dict) or request.get("protocol") != PROTOCOL:
        problem = "the ctrain of this login node does not understand that of your machine"
        raise UsageError(problem, "Install the same version on both")
    return request

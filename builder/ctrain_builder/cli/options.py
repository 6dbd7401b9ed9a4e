"""Types of options that several verbs have."""

from __future__ import annotations

import argparse


def days(text: str) -> float:
    """A number of days. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of days, not {text!r}")
    return number

"""The version of ctrain."""

from __future__ import annotations


def ctrain_version() -> str:
    """As installed; "" where it is run from a checkout that is not."""
    from importlib.metadata import PackageNotFoundError, version  # start-up is measured

    try:
        return version("ctrain")
    except PackageNotFoundError:
        return ""

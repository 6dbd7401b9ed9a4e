from __future__ import annotations

import pytest

from ctrain_builder.cli.options import parse_size
from ctrain_runtime.errors import UsageError


@pytest.mark.parametrize(
    ("text", "count"), [("200GB", 200 * 10**9), ("1.5 tb", 15 * 10**11), ("7B", 7), ("3kB", 3000), ("0", 0)]
)
def test_sizes_are_read(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1 PB", "1,5GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["5", "200", "1.5"])
def test_a_size_without_a_unit_is_not_taken_for_bytes(text: str) -> None:
    """5 would empty the cache, of the layers of other images, too."""
    with pytest.raises(UsageError, match=rf"^size '{text}' has no unit\. Write it as in 200GB"):
        parse_size(text)

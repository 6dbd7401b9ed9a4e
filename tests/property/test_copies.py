"""A copy that goes on: what is there already and what is still to come are the whole file, each byte once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ctrain_builder.store.copy import _pieces


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted).map(tuple)), st.integers(50, 60))
def test_pieces_are_the_whole_file_once(kept: list[tuple[int, int]], size: int) -> None:
    pieces = list(_pieces(sorted(kept), size))
    assert [at for start, end, _ in pieces for at in range(start, end)] == list(range(size))
    there = {at for start, end in kept for at in range(start, end)}
    assert {at for start, end, has in pieces if has for at in range(start, end)} == there
    assert all(start < end for start, end, _ in pieces)

"""Laws of what files share on a disk: places as a naive count of single bytes has them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ctrain_builder.store.usage import _places, _size

extents = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=12
)


@given(extents, st.integers(1, 3))
def test_places_that_are_there_several_times(found: list[tuple[int, int]], times: int) -> None:
    bytes_ = [place for start, end in found for place in range(start, end)]
    wanted = {place for place in bytes_ if bytes_.count(place) >= times}
    places = _places(found, times)
    assert {place for start, end in places for place in range(start, end)} == wanted
    assert sum(end - start for start, end in places) == len(wanted)


@given(extents, extents)
def test_what_two_have_in_common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    sets = [{place for start, end in found for place in range(start, end)} for found in (one, other)]
    assert _size(_places([*_places(one, 1), *_places(other, 1)], 2)) == len(sets[0] & sets[1])

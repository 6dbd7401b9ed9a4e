"""Laws of merging layers: a key of a higher layer always wins, and what a layer does not set does not change."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ctrain_runtime.site.layers import Layer, Level, merge

SCALARS = ("partition", "comment", "mpi")
MAPPINGS = ("env", "datasets")
texts = st.sampled_from(["", "a", "b"])
entries = st.dictionaries(st.sampled_from(["X", "Y", "Z"]), st.none() | texts)
values = st.fixed_dictionaries(
    {},
    optional={
        "partition": st.none() | texts,
        "comment": st.none() | texts,
        "mpi": st.none() | st.lists(texts),
        "env": st.none() | entries,
        "datasets": st.none() | entries,
    },
)
stacks = st.lists(values, max_size=4).map(
    lambda stack: [Layer(Level.USER, f"layer {number}", keys) for number, keys in enumerate(stack)]
)


@given(stacks, values)
def test_what_the_top_layer_sets_wins(below: list[Layer], top: dict[str, Any]) -> None:
    merged = merge([*below, Layer(Level.OPTION, "top", top)])
    for key, value in top.items():
        assert merged.sources[key] == "top"
        if value is None:
            assert key not in merged.values
        elif key in SCALARS:
            assert merged.values[key] == value
        else:
            for entry, item in value.items():
                assert merged.values[key].get(entry) == item
                assert merged.sources.get(f"{key}.{entry}") == (None if item is None else "top")


@given(stacks, values)
def test_what_the_top_layer_leaves_out_does_not_change(below: list[Layer], top: dict[str, Any]) -> None:
    before, after = merge(below), merge([*below, Layer(Level.OPTION, "top", top)])
    for key in {*SCALARS, *MAPPINGS} - top.keys():
        assert after.values.get(key) == before.values.get(key)
        assert after.sources.get(key) == before.sources.get(key)
    for key in top.keys() & MAPPINGS:
        for entry in (before.values.get(key) or {}).keys() - (top[key] or {}).keys():
            kept = top[key] is not None
            assert after.values.get(key, {}).get(entry) == (before.values[key][entry] if kept else None)


@given(stacks)
def test_every_value_has_the_source_that_set_it(stack: list[Layer]) -> None:
    merged = merge(stack)
    by_source = {layer.source: layer.values for layer in stack}
    for key, value in merged.values.items():
        if not isinstance(value, dict):
            assert by_source[merged.sources[key]][key] == value
            continue
        for entry, item in value.items():
            assert by_source[merged.sources[f"{key}.{entry}"]][key][entry] == item
    dotted = {f"{key}.{entry}" for key in MAPPINGS for entry in merged.values.get(key, {})}
    assert {source for source in merged.sources if "." in source} == dotted


@given(stacks, stacks)
def test_layers_can_be_merged_in_steps(lower: list[Layer], upper: list[Layer]) -> None:
    """Unless the upper ones reset something, which only means anything to what lies below."""
    plain = [
        Layer(layer.level, layer.source, {key: drop_nulls(value) for key, value in layer.values.items() if value})
        for layer in upper
    ]
    steps = [Layer(Level.USER, "lower", merge(lower).values), Layer(Level.USER, "upper", merge(plain).values)]
    assert merge(steps).values == merge([*lower, *plain]).values


def drop_nulls(value: Any) -> Any:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value

from __future__ import annotations

from typing import Any

import pytest

from ctrain_runtime.errors import SiteError
from ctrain_runtime.site.layers import Layer, Level, check_trust_keys, merge


def layers(*values: dict[str, Any]) -> list[Layer]:
    """Layers called a, b, c ..., lowest first."""
    return [Layer(Level.USER, name, keys) for name, keys in zip("abc", values)]


def test_the_highest_layer_wins_key_by_key() -> None:
    merged = merge(layers({"partition": "x", "runs": "r"}, {"partition": "y"}))
    assert merged.values == {"partition": "y", "runs": "r"}
    assert merged.sources == {"partition": "b", "runs": "a"}


def test_lists_are_replaced() -> None:
    assert merge(layers({"mpi": ["pmix", "pmi2"]}, {"mpi": ["cray_shasta"]})).values == {"mpi": ["cray_shasta"]}


def test_mappings_merge_by_entry() -> None:
    merged = merge(layers({"env": {"A": "1", "B": "1"}}, {"env": {"B": "2", "C": "2"}}))
    assert merged.values == {"env": {"A": "1", "B": "2", "C": "2"}}
    assert merged.sources == {"env": "b", "env.A": "a", "env.B": "b", "env.C": "b"}


def test_null_resets_a_key() -> None:
    merged = merge(layers({"partition": "x", "env": {"A": "1"}}, {"partition": None, "env": None}))
    assert merged.values == {}
    assert merged.sources == {"partition": "b", "env": "b"}
    assert merge(layers({"env": {"A": "1"}}, {"env": None}, {"env": {"B": "3"}})).values == {"env": {"B": "3"}}


def test_null_removes_an_entry() -> None:
    merged = merge(layers({"env": {"A": "1", "B": "1"}}, {"env": {"A": None, "X": None}}))
    assert merged.values == {"env": {"B": "1"}}
    assert merged.sources == {"env": "b", "env.B": "a"}


ON: dict[str, Any] = {"require_signature": True, "trusted_keys": ["/k"]}


@pytest.mark.parametrize(
    "change",
    [
        {"require_signature": False},
        {"trusted_keys": ["/mine"]},
        {"trusted_keys": None},
        {"layer_caches": ["oras://r/x"]},
    ],
)
@pytest.mark.parametrize("level", [Level.USER, Level.FILE])
def test_signatures_that_the_system_requires_stay(level: Level, change: dict[str, Any]) -> None:
    chain = [Layer(Level.SYSTEM, "etc", ON), Layer(Level.SYSTEM, "child", {"runs": "r"}), Layer(level, "mine", change)]
    with pytest.raises(SiteError, match=r"^mine: [a-z_]+ cannot be changed: etc requires signatures"):
        check_trust_keys(chain)


@pytest.mark.parametrize("level", [Level.USER, Level.FILE, Level.PROJECT])
def test_only_images_of_stores_stays_what_the_system_demands(level: Level) -> None:
    chain = [Layer(Level.SYSTEM, "etc", {"images": "store"}), Layer(level, "mine", {"images": "any"})]
    with pytest.raises(SiteError, match=r"^mine: images cannot be changed: etc allows only images of stores"):
        check_trust_keys(chain)


def test_signatures_can_be_required_above_the_system() -> None:
    check_trust_keys([Layer(Level.SYSTEM, "etc", {"trusted_keys": ["/k"]}), Layer(Level.USER, "mine", ON)])
    check_trust_keys([Layer(Level.BUILT_IN, "own", ON), Layer(Level.SYSTEM, "etc", {"require_signature": False})])


def test_who_sets_a_variable_need_not_know_that_it_holds_on_several_nodes() -> None:
    """Files of users have `env: {NCCL_NET: null}`, of the time when the sites had it in `env`."""
    below = Layer(Level.BUILT_IN, "site", {"env_multinode": {"NCCL_NET": "AWS Libfabric", "A": "1"}, "env": {"A": "0"}})
    merged = merge([below, Layer(Level.USER, "user", {"env": {"NCCL_NET": None}})])
    assert merged.values == {"env": {"A": "0"}, "env_multinode": {"A": "1"}}
    assert "env_multinode.NCCL_NET" not in merged.sources
    assert merge([below, Layer(Level.USER, "user", {"env": {"A": "2"}})]).values == {
        "env": {"A": "2"},
        "env_multinode": {"NCCL_NET": "AWS Libfabric"},
    }
    assert merge([below, Layer(Level.USER, "user", {"env": None})]).values["env_multinode"]["A"] == "1"
    assert below.values["env_multinode"] == {"NCCL_NET": "AWS Libfabric", "A": "1"}
